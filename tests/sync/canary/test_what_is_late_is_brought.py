"""An event that the walks are past and the ledger lacks (the log lost it unread, say) is read by its id and published,
so that nobody has to."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from consumer.payments import PaymentsError
from consumer.sync.canary.late_events import AGAIN_AFTER, AT_ONCE, FAILED_AGAIN_AFTER
from consumer.sync.canary.sightings import LATE
from consumer.sync.canary.stage import Canary
from tests.sync.canary.test_money_taken_there_is_known_here import event, looking, recorded, shows, told
from tests.sync.conftest import World

LATE_S = LATE.total_seconds()


async def missing(world: World, count: int) -> list[str]:
    """So many events are listed, and never come."""
    ids = [f"evt_{number}" for number in range(count)]
    shows(world, listed=[event(number) for number in range(count)])
    for number in range(count):
        world.service.records[f"/v1/events/evt_{number}"] = event(number)
    return ids


async def late(world: World, count: int) -> tuple[Canary, list[str]]:
    stage = await looking(world)
    ids = await missing(world, count)
    await stage.look()
    assert await world.published() == [], "a healthy path takes a while, too"
    world.clock.advance(LATE_S)
    await stage.look()
    return stage, ids


# case: B27, B5, O7
async def test_a_late_event_is_published_once(world: World) -> None:
    stage, ids = await late(world, 2)
    assert sorted(one.id for one in await world.published()) == sorted(ids)
    await stage.look()
    assert len(await world.published()) == 2, "it is on its way"
    for number in range(2):
        await recorded(world, number)
    await stage.look()
    assert await told(world) is None


async def test_so_many_at_once_and_again_after_an_hour(world: World) -> None:
    stage, ids = await late(world, AT_ONCE + 5)
    assert len(await world.published()) == AT_ONCE
    await stage.look()
    assert {one.id for one in await world.published()} == set(ids)
    for _ in range(int(AGAIN_AFTER.total_seconds() / LATE_S) + 2):
        world.clock.advance(LATE_S)
        await stage.look()
    assert len(await world.published()) == 2 * len(ids)


@pytest.mark.parametrize("answer", [{"odd": "without an id"}, None])
async def test_one_that_cannot_be_had_keeps_no_other_waiting(world: World, answer: dict[str, str] | None) -> None:
    stage = await looking(world)
    await missing(world, 3)
    if answer is None:
        del world.service.records["/v1/events/evt_1"]
    else:
        world.service.records["/v1/events/evt_1"] = answer
    await stage.look()
    world.clock.advance(LATE_S)
    with capture_logs() as logs:
        await stage.look()
    brought = [line["event_id"] for line in logs if line["event"] == "late_event_brought"]
    assert sorted(brought) == ["evt_0", "evt_2"]
    assert {one.id for one in await world.published()} == {"evt_0", "evt_2"}


# case: B27
async def test_one_that_the_service_fails_to_show_keeps_no_other_waiting_and_is_not_tried_at_each_look(
    world: World,
) -> None:
    stage = await looking(world)
    await missing(world, 2)
    world.service.failing["/v1/events/evt_0"] = 500
    await stage.look()
    world.clock.advance(LATE_S)
    with pytest.raises(PaymentsError):
        await stage.look()
    assert [one.id for one in await world.published()] == ["evt_1"]
    await stage.look()
    assert [one.id for one in await world.published()] == ["evt_1"]


# case: B27
async def test_one_that_could_not_be_had_comes_soon_after_the_service_answers_again(world: World) -> None:
    stage = await looking(world)
    await missing(world, 1)
    world.service.failing["/v1/events/evt_0"] = 503
    await stage.look()
    world.clock.advance(LATE_S)
    with pytest.raises(PaymentsError):
        await stage.look()
    del world.service.failing["/v1/events/evt_0"]
    await stage.look()
    assert await world.published() == []
    world.clock.advance(FAILED_AGAIN_AFTER.total_seconds())
    await stage.look()
    assert [one.id for one in await world.published()] == ["evt_0"]
