"""Arrival: a test event counts from when it was asked for, wherever it lies, and the time it took is told."""

from __future__ import annotations

from datetime import timedelta

import pytest

from consumer.checks import awaited_test_event, doctor
from consumer.checks.awaited_test_event import HOST_SKEW, is_test
from consumer.checks.doctor import Grade
from consumer.events import Locators
from consumer.ledger import Database
from consumer.ledger.reading import heard
from tests.checks.test_a_wrong_set_up_is_said import REAL_BODY, TEST_BODIES, came
from tests.sync.conftest import SteppedClock, World

NOW = SteppedClock().now()
LOST = "nothing arrived within 5 s: is the endpoint's address right, is `serve` up?"
WHERE = {"hint": "waits to be confirmed", "quarantine": "in quarantine", "webhook": "recorded as an event"}


@pytest.mark.parametrize(
    ("raw", "says_so"),
    [
        (b"not JSON", False),
        (b"[]", False),
        (b"{}", False),
        (b'{"type":5}', False),
        (b'{"type":"order.paid"}', False),
        (b'{"type":"webhook.test"}', True),
        (b'{"type":5,"test":true}', True),
    ],
)
def test_a_body_says_by_itself_that_it_is_a_test(raw: bytes, says_so: bool) -> None:
    # case: F24, U8
    assert is_test(raw, Locators().type) is says_so


class Arriving(SteppedClock):
    """A clock at whose `after_s` a delivery comes."""

    def __init__(self, database: Database, where: str, after_s: float) -> None:
        super().__init__()
        self._database, self._where, self._after_s = database, where, after_s

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        if self.monotonic() == self._after_s:
            await came(self._database, self.now(), TEST_BODIES[0], self._where)


@pytest.mark.parametrize("where", WHERE)
async def test_how_long_it_took_and_where_it_lies_is_said(world: World, where: str) -> None:
    # case: U8
    world.service.records["/v1/webhook/test-event"] = {"event_id": "evt_x"}
    clock = Arriving(world.database, where, 2.5)
    found = await doctor.follow_test_event(world.api, world.database, clock, within_s=5)
    assert (found.name, found.grade, found.text) == ("test event", Grade.OK, f"arrived after 2.5 s: {WHERE[where]}")


async def test_what_comes_when_the_time_is_over_did_not_arrive(world: World) -> None:
    # case: U8
    world.service.records["/v1/webhook/test-event"] = {"event_id": "evt_x"}
    found = await doctor.follow_test_event(world.api, world.database, Arriving(world.database, "hint", 5), within_s=5)
    assert (found.name, found.grade, found.text) == ("test event", Grade.FAIL, f"sent, but {LOST}")


async def test_what_a_walk_alone_has_found_is_said_to_be_listed(world: World) -> None:
    # case: U8, B28
    world.service.records["/v1/webhook/test-event"] = {"event_id": "evt_x"}
    await came(world.database, NOW, REAL_BODY, "backfill")
    listed = await doctor.follow_test_event(world.api, world.database, world.clock, within_s=5)
    assert (listed.grade, listed.text) == (Grade.FAIL, f"sent, and listed by the service, but {LOST}")


async def test_a_test_event_that_the_service_refuses_to_send_is_said(world: World) -> None:
    # case: U8
    world.service.failing["*"] = 403
    found = await doctor.follow_test_event(world.api, world.database, world.clock, within_s=5)
    assert (found.name, found.grade, found.text[:17]) == ("test event", Grade.FAIL, "error[api_error]:")


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("early_s", "counts"), [(0.0, True), (0.001, False)])
async def test_a_delivery_counts_as_far_back_as_clocks_may_differ(
    world: World, where: str, early_s: float, counts: bool
) -> None:
    # case: U8, U18
    await came(world.database, NOW - HOST_SKEW - timedelta(seconds=early_s), TEST_BODIES[0], where)
    sought = awaited_test_event.AwaitedTestEvent(world.api, world.database, None, NOW)
    assert await sought.look() == (WHERE[where] if counts else None)


async def test_of_several_others_the_first_that_was_seen_is_named(world: World) -> None:
    # case: U18
    await came(world.database, NOW, REAL_BODY, "quarantine", "evt_1")
    await came(world.database, NOW, REAL_BODY, "webhook", "evt_2")
    sought = awaited_test_event.AwaitedTestEvent(world.api, world.database, None, NOW)
    assert (await sought.look(), await sought.look(), sought.other) == (None, None, "in quarantine")
    await came(world.database, NOW, TEST_BODIES[0], "hint")
    assert await sought.look() == "waits to be confirmed", "however many others came before"


@pytest.mark.parametrize(("heard_s", "grade"), [(-1, Grade.FAIL), (0, Grade.WARN)])
async def test_a_webhook_that_was_heard_since_may_have_been_the_one_that_a_walk_found_first(
    world: World, heard_s: float, grade: Grade
) -> None:
    # case: U8, B28
    world.service.records["/v1/webhook/test-event"] = {"event_id": "evt_x"}
    await came(world.database, NOW, TEST_BODIES[0], "backfill")
    async with world.database.transaction() as session:
        await heard.note(session, {"default": NOW + timedelta(seconds=heard_s)})
    found = await doctor.follow_test_event(world.api, world.database, world.clock, within_s=5)
    assert found.grade is grade
    if grade is Grade.WARN:
        where = "a delivery arrived (recorded as an event), but whether it is the test event cannot be told"
        assert found.text == f"sent; {where}"
