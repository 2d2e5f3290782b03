"""A list may show less of an event than a read of it does, down to its id (case B22): what it leaves out is read before
anything is decided. Published as it is listed, an event would count as handled, and its webhook as a copy."""

from __future__ import annotations

from collections import Counter

import pytest

from consumer.events import Event
from consumer.ledger.reading import quarantine
from consumer.payments import ServerError
from consumer.sync.backfill.page import FAILED_MAX, VAIN_MAX
from consumer.sync.backfill.report import BackfillOptions
from consumer.wire import plan_of
from tests.sync.backfilling import backfill
from tests.sync.confirming import hint, stages
from tests.sync.conftest import EVENTS, Simulated, SteppedClock, World, pass_time, read_all, simulated
from tests.sync.service import Json, ScriptedService

SHAPES = ("summary", "id")


def single_reads(service_side: Simulated) -> int:
    return sum(one.route == "/v1/events/{id}" for one in service_side.attempts)


def is_whole(event: Event) -> bool:
    return (event.type, event.order_id is not None) == ("order.paid", True)


@pytest.mark.parametrize("order", ["newest_first", "oldest_first"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_every_event_comes_whole_and_is_read_once(
    world: World, clock: SteppedClock, order: str, shape: str
) -> None:
    # case: B22, U1, U28, G3
    async with simulated(clock, events_order=order, listed_event_shape=shape) as service_side:
        world.api = service_side.api
        wanted = service_side.emit(130)
        stage = backfill(world)
        await stage.once()
        await world.work()
        wanted += service_side.emit(20)
        await stage.once()
        found = await world.published()
        assert sorted(event.id for event in found) == sorted(wanted)
        assert all(is_whole(event) for event in found)
        assert single_reads(service_side) == len(wanted)


@pytest.mark.parametrize("shape", SHAPES)
async def test_many_hints_are_confirmed_by_whole_events(world: World, clock: SteppedClock, shape: str) -> None:
    # case: B22, I16, U28
    async with simulated(clock, listed_event_shape=shape) as service_side:
        world.api = service_side.api
        wanted = service_side.emit(60)
        await hint(world, wanted)
        confirm, _ = stages(world)
        while await confirm.once():
            pass
        found = await world.published()
        assert sorted(event.id for event in found) == sorted(wanted)
        assert all(is_whole(event) for event in found)
        async with world.database.reading() as session:
            assert await quarantine.newest(session) == [], "no webhook states otherwise than its event"


async def test_what_shows_no_time_in_the_list_is_history_by_its_own(world: World, clock: SteppedClock) -> None:
    # case: B22, B30
    async with simulated(clock, listed_event_shape="id") as service_side:
        world.api = service_side.api
        old = service_side.emit(30)
        pass_time(world, service_side, days=1)
        young = service_side.emit(5)
        stage = backfill(world)
        await stage.once()
        assert sorted(event.id for event in await world.published()) == sorted(young)
        asked = single_reads(service_side)
        await stage.once()
        assert single_reads(service_side) == asked, "what was found to be history is not read by each walk"
        await backfill(world, token=2).once(BackfillOptions(seed=True, full=True))
        records = await read_all(world.broker, EVENTS)
        assert Counter(plan_of(one.headers) for one in records) == {None: len(young), "seed": len(old)}
        assert all(is_whole(event) for event in await world.published())


def listed_in_brief(service: ScriptedService, events: list[Json]) -> None:
    service.lists["/v1/events"] = lambda cursor, limit: {
        "items": [{"id": one["id"]} for one in events],
        "next_cursor": None,
    }


async def test_where_a_read_says_no_more_few_are_made(world: World, service: ScriptedService) -> None:
    # case: B22, B23
    listed_in_brief(service, [service.event(number, kind="?") for number in range(100)])
    report = await backfill(world).once()
    assert report.published == 100, "archived, and handled by nobody (case I7)"
    assert sum(calls for path, calls in service.calls.items() if path.startswith("/v1/events/")) == VAIN_MAX


async def test_one_that_cannot_be_read_keeps_others_waiting_for_a_few_walks_only(
    world: World, service: ScriptedService
) -> None:
    # case: B22, G7
    events = [service.event(number, order_id=f"A-{number}") for number in range(3)]
    listed_in_brief(service, events)
    service.failing[f"/v1/events/{events[1]['id']}"] = 503
    stage = backfill(world)
    for _ in range(FAILED_MAX - 1):
        with pytest.raises(ServerError):
            await stage.once()
        assert await world.published() == []
    await stage.once()
    assert sorted((one.id, one.type) for one in await world.published()) == [
        (events[0]["id"], "order.paid"),
        (events[1]["id"], "unknown.type"),
        (events[2]["id"], "order.paid"),
    ]
    assert service.calls[f"/v1/events/{events[0]['id']}"] == 1, "a page that was cut goes on where it was"
