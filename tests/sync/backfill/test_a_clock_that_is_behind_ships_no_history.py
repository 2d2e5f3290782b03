"""What is history is reckoned by the service's clock where ours is behind: somebody else has acted on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from consumer.clock import SharedClock, SystemClock
from consumer.errors import UsageError
from consumer.payments import Credentials, PaymentsClient
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.report import BackfillOptions
from consumer.sync.role import ApplicationSync
from tests.sync.conftest import World

DAY = timedelta(days=1)


class OffClock(SystemClock):
    """A machine that woke up with the time of its last shutdown, or with one to come."""

    def __init__(self, off: timedelta) -> None:
        self.off = off

    def now(self) -> datetime:
        return super().now() + self.off


@pytest.fixture(params=[-90 * DAY, -timedelta(hours=2), timedelta(0), timedelta(minutes=30)], ids=str)
async def sync(world: World, request: pytest.FixtureRequest) -> AsyncIterator[ApplicationSync]:
    """Where nothing has walked yet; the service lists an order of two days ago, and one of a minute ago."""
    listed = []
    for number, age in enumerate((timedelta(minutes=1), 2 * DAY)):
        event = world.service.event(number, order_id=f"A-{number}")
        listed.append(event | {"created_at": (datetime.now(UTC) - age).isoformat()})
    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": listed, "next_cursor": None}
    clock = SharedClock(OffClock(request.param))
    credentials = Credentials("svc_app_test", ["svc_sk_live_test"])
    async with PaymentsClient(world.service.address, credentials, clock=clock) as client:
        api = ApplicationApi(application="default", client=client)
        yield ApplicationSync(api, world.database, world.publisher, clock=clock, holder="one")


async def test_the_first_walk_leaves_history_alone(sync: ApplicationSync, world: World) -> None:
    # case: B30
    report = await sync.backfill_once(BackfillOptions())
    assert (report.published, report.history) == (1, 1)
    assert [event.order_id for event in await world.published()] == ["A-0"]


async def test_a_seed_archives_all_that_was_before_it(sync: ApplicationSync) -> None:
    # case: B30
    report = await sync.backfill_once(BackfillOptions(seed=True, full=True))
    assert (report.published, report.left) == (2, 0)


async def test_a_cut_over_may_be_named_that_has_come_at_the_service(sync: ApplicationSync) -> None:
    # case: B30
    named = BackfillOptions(seed=True, full=True, until=datetime.now(UTC) - timedelta(minutes=10))
    report = await sync.backfill_once(named)
    assert (report.published, report.left) == (1, 1)
    with pytest.raises(UsageError, match="has not come yet"):
        await sync.backfill_once(BackfillOptions(seed=True, full=True, until=datetime.now(UTC) + DAY))
