"""What holds a stage up is in the ledger and on the metrics page, and gone when the stage goes on."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from consumer.clock import SystemClock
from consumer.payments import Credentials, PaymentsClient
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.health.stalled import FRESH_FOR, SAY_AGAIN, StalledStage, Watch, after, stalled_stages
from consumer.sync.role import SyncPolicy
from tests.support.ports import eventually
from tests.sync.conftest import SteppedClock, World, counted_by
from tests.sync.service import Json
from tests.sync.test_a_dead_leader_is_replaced import role, running

NOW = SteppedClock().now()


def test_a_trouble_is_as_old_as_its_stages_first_failure() -> None:
    # case: B7, B32
    [found] = after((), {"backfill": "cursor_loop"}, NOW)
    assert found == StalledStage(stage="backfill", code="cursor_loop", since=NOW)
    later = NOW + timedelta(minutes=5)
    both = after((found,), {"backfill": "server_error", "confirm": "server_error"}, later)
    assert [(one.stage, one.code, one.since) for one in both] == [
        ("backfill", "server_error", NOW),
        ("confirm", "server_error", later),
    ]
    assert after(both, {}, later) == ()
    [hung] = after((), {"confirm": "api_timeout"}, later, {"confirm": 30.0, "backfill": 9.0})
    assert hung.since == later - timedelta(seconds=30), "it has waited for an answer since"


async def test_what_nobody_says_again_is_told_no_more(world: World) -> None:
    # case: B32, O3
    failures, stop = {"identity": "wrong_application"}, asyncio.Event()

    def seen() -> dict[str, str]:
        if world.clock.monotonic() >= 300:
            stop.set()
        return failures

    watch = Watch(world.app, seen)
    began = world.clock.now()
    await watch.run(stop)
    ended = world.clock.now()

    async def told(now: datetime) -> list[tuple[str, datetime]]:
        async with world.database.reading() as session:
            return [(one.code, one.since) for one in await stalled_stages(session, "default", now)]

    assert ended - began >= timedelta(minutes=5)
    lately = ended + FRESH_FOR - 2 * SAY_AGAIN
    assert await told(lately) == [("wrong_application", began)], "said again all the while, and as old as it is"
    assert await told(ended + FRESH_FOR + timedelta(seconds=1)) == [], "every `sync` has ended since"


@pytest.mark.slow
async def test_a_cursor_loop_is_in_the_ledger_until_the_list_is_well_again(world: World) -> None:
    # case: B7
    loops = True

    def listed(cursor: str | None, limit: int) -> Json:
        item = {"id": "evt_1", "type": "order.paid", "created_at": "2026-01-01T00:00:00Z"}
        return {"items": [item], "next_cursor": "evt_1" if loops else None}

    world.service.lists["/v1/events"] = listed
    for name in ("orders", "subscriptions", "payments"):
        world.service.lists[f"/v1/{name}"] = lambda cursor, limit: {"items": [], "next_cursor": None}
    credentials = Credentials("svc_app_test", ["svc_sk_live_test"])
    policy = SyncPolicy(lease_s=1.5, backfill=BackfillPolicy(interval_s=0.5))
    async with PaymentsClient(world.service.address, credentials, clock=SystemClock()) as client:
        api = ApplicationApi(application="default", client=client)
        first = role(api, world.broker, world.database, "one", policy)
        async with running(first):
            [found] = await eventually(lambda: _noted(world), within_s=20)
            assert (found.stage, found.code) == ("backfill", "cursor_loop")
            assert counted_by(first.metrics, "held_up", "default", "backfill") == 1
        assert counted_by(first.metrics, "held_up", "default", "backfill") == 0, "who does not lead is not held up"
        second = role(api, world.broker, world.database, "two", policy)
        loops = False
        async with running(second):
            await eventually(lambda: _forgotten(world), within_s=20, what="the next leader goes on with it")


async def _noted(world: World) -> tuple[StalledStage, ...]:
    async with world.database.reading() as session:
        return await stalled_stages(session, "default", SystemClock().now())


async def _forgotten(world: World) -> bool:
    return not await _noted(world)
