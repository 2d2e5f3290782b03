"""When a hint is looked at again: denials wait ever longer until patience is over; a failure of the service counts
nothing and waits half a minute."""

from __future__ import annotations

from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from consumer.payments import PaymentsError
from consumer.sync.confirm.decision import next_look_s
from consumer.sync.confirm.denials import Denials
from consumer.sync.confirm.policy import FAILED_AGAIN_S
from tests.sync.confirm.test_only_what_the_service_says_becomes_an_event import (
    confirm,
    hint,
    quarantined,
    waiting,
)
from tests.sync.conftest import World, counted_by

LOOKS_S = [2.0, 6.0, 18.0, 54.0, 120.0, 120.0, 120.0, 120.0, 120.0, 120.0, 120.0]


def test_waits_treble_up_to_two_minutes() -> None:
    # case: U30
    assert [next_look_s(denials) for denials in range(1, len(LOOKS_S) + 2)] == [*LOOKS_S, None]


@pytest.mark.parametrize(("patience_s", "looks"), [(0.0, 0), (1.9, 1), (2.0, 1), (2.1, 2), (8.0, 2), (26.0, 3)])
def test_patience_counts_the_waits_that_were_waited(patience_s: float, looks: int) -> None:
    # case: U30
    found = [next_look_s(denials, patience_s) for denials in range(1, looks + 2)]
    assert found == [*LOOKS_S[:looks], None]


def test_the_last_denial_is_the_one_after_which_nobody_looks(world: World) -> None:
    denials = Denials(world.app, world.settlement(), patience_s=26.0)
    assert [denials.is_last(before) for before in range(4)] == [False, False, False, True]


async def test_a_failure_of_the_service_puts_off_and_denies_nothing(world: World) -> None:
    # case: G7
    world.service.event(1)
    world.service.failing["/v1/events/evt_000001"] = 500
    await hint(world, "evt_000001")
    stage = confirm(world)
    assert await stage.once() == 0
    asked = world.service.calls["/v1/events/evt_000001"]
    world.clock.advance(FAILED_AGAIN_S - 5)
    await stage.once()
    assert world.service.calls["/v1/events/evt_000001"] == asked, "half a minute is not over"
    del world.service.failing["/v1/events/evt_000001"]
    world.clock.advance(6)
    assert await stage.once() == 1
    assert (await waiting(world), len(await world.published())) == (0, 1)


async def test_what_patience_is_over_for_is_counted_and_said_once(world: World) -> None:
    # case: I17, U30
    denials = Denials(world.app, world.settlement(), patience_s=2.0)
    for event_id in ("evt_1", "evt_2", "evt_3"):
        await hint(world, event_id)
    with capture_logs() as logs:
        assert await denials.store({"evt_1": 0}) == 0
        assert await denials.store({"evt_1": 1, "evt_2": 0, "evt_3": 5}) == 2
    assert counted_by(world.metrics, "confirmed", "default", "not_confirmed") == 2
    assert counted_by(world.metrics, "quarantined", "default", "not_confirmed") == 2
    assert [(line["event"], line["deliveries"]) for line in logs] == [("deliveries_not_confirmed", 2)]
    assert await waiting(world) == 1


@pytest.mark.parametrize("status", [302, 403, 404, 408])
async def test_what_stands_before_the_service_denies_nothing(world: World, status: int) -> None:
    # case: G7, U30
    world.service.event(1)
    await hint(world, "evt_000001")
    world.service.failing["*"] = status  # a redirect to a page about maintenance, a firewall, a wrong path, a balancer
    stage = confirm(world)
    for _ in range(60):
        with suppress(PaymentsError):
            await stage.once()
        world.clock.advance(LOOKS_S[-1])
    assert (await waiting(world), await quarantined(world)) == (1, [])
    del world.service.failing["*"]
    assert await stage.once() == 1
    assert len(await world.published()) == 1
