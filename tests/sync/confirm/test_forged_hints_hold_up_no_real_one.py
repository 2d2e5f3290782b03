"""Confirm under load: many hints are settled by walking, and forged ones cost their share and nobody's time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from consumer.broker import EmbeddedBroker
from consumer.events import Event, Source
from consumer.ledger import Database
from consumer.ledger.reading import hints, quarantine
from consumer.lists.progress import Progress
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.catch_up import CatchUp
from consumer.sync.confirm.stage import Confirm
from consumer.sync.publisher import EventPublisher, Left
from tests.sync.confirming import hint, stages
from tests.sync.conftest import EVENTS, Simulated, SteppedClock, World, counted_by, pass_time, simulated
from tests.sync.service import ScriptedService


@pytest.fixture
def world(world: World, service_side: Simulated) -> World:
    world.api = service_side.api
    return world


FULL_PAGE = 100


class HeldPublisher(EventPublisher):
    """Holds a walk up after some full pages, until `gate` is set; `reached` is set then."""

    def __init__(self, broker: EmbeddedBroker, topic: str, *, pages: int) -> None:
        super().__init__(broker, topic)
        self.gate, self.reached = asyncio.Event(), asyncio.Event()
        self._left = pages

    async def publish(
        self, events: Sequence[Event], *, plan: str | None = None, smaller: Callable[[Event], Event] | None = None
    ) -> Left:
        self._left -= len(events) >= FULL_PAGE
        if self._left < 0 and len(events) >= FULL_PAGE:
            self.reached.set()
            await self.gate.wait()
        return await super().publish(events, plan=plan, smaller=smaller)


async def waiting(world: World) -> int:
    async with world.database.reading() as session:
        return await hints.count(session)


async def test_many_hints_are_confirmed_a_hundred_a_read_with_their_delivery(
    world: World, service_side: Simulated
) -> None:
    # case: I15, B27
    ids = service_side.emit(500)
    await hint(world, ids)
    confirm, _ = stages(world)
    assert await confirm.once() == 500
    assert len(service_side.attempts) <= 6
    found = await world.published()
    assert {event.id for event in found} == set(ids)
    assert {event.source for event in found} == {Source.WEBHOOK}
    assert all(event.delivery_id.startswith("dlv_") for event in found)
    assert await waiting(world) == 0
    assert counted_by(world.metrics, "confirmed", "default", "confirmed") == 500
    assert counted_by(world.metrics, "walked", "default", "recovered") == 0


async def test_few_hints_are_read_at_once_without_a_walk(world: World, service_side: Simulated) -> None:
    # case: I15
    ids = service_side.emit(3)
    await hint(world, ids)
    confirm, _ = stages(world)
    assert await confirm.once() == 3
    assert [attempt.route for attempt in service_side.attempts] == ["/v1/events/{id}"] * 3


async def test_backfill_settles_the_hints_it_meets(world: World, service_side: Simulated) -> None:
    # case: B4
    ids = service_side.emit(30)
    await hint(world, ids)
    _, backfill = stages(world)
    await backfill.once()
    assert await waiting(world) == 0
    assert {event.source for event in await world.published()} == {Source.WEBHOOK}


async def test_a_mismatch_is_noticed_while_walking_too(world: World, service_side: Simulated) -> None:
    # case: I16
    ids = service_side.emit(40, kind="order.expired")
    await hint(world, ids)  # the deliveries say order.paid
    confirm, _ = stages(world)
    await confirm.once()
    assert counted_by(world.metrics, "mismatches", "default") == 40
    assert {event.type for event in await world.published()} == {"order.expired"}


async def test_when_the_list_is_broken_single_reads_go_on_within_their_share(
    broker: EmbeddedBroker, sqlite_ledger: Database, service: ScriptedService, api: object, clock: SteppedClock
) -> None:
    # case: G3
    assert isinstance(api, ApplicationApi)
    world = World(broker=broker, database=sqlite_ledger, service=service, api=api, clock=clock)
    service.failing["/v1/events"] = 500
    await hint(world, [service.event(number)["id"] for number in range(60)])
    confirm, _ = stages(world)
    for _ in range(200):
        await confirm.once()
        clock.advance(2)
    assert len(await world.published()) == 60


async def test_a_long_walk_under_way_does_not_hold_up_new_hints(world: World, service_side: Simulated) -> None:
    # case: B23, I15
    service_side.emit(400)
    confirm, backfill = stages(world)

    class Cut(Exception):
        """The walk is under way, and will be for long."""

    def cut(progress: Progress) -> None:
        if progress.pages == 2:
            raise Cut

    with pytest.raises(Cut):
        await backfill.once(on_progress=cut)
    async with backfill.walking:
        news = service_side.emit(60)
        forged = [f"evt_forged{number}" for number in range(60)]
        await hint(world, [*news, *forged])
        before = len(service_side.attempts)
        assert await confirm.once() == 60
        assert len(service_side.attempts) - before <= 2
        assert await waiting(world) == 60
        async with world.database.reading() as session:
            denied = await hints.of_events(session, "default", forged)
        assert {row.attempts for row in denied} == {0}, "not all was looked at: nothing is denied"
    assert {event.id for event in await world.published()} >= set(news)


async def test_a_walk_for_hints_that_turns_out_long_is_left_to_backfill(world: World, service_side: Simulated) -> None:
    # case: B23
    confirm, backfill = stages(world)
    await backfill.once()
    before = len(service_side.attempts)
    missed = service_side.emit(8000)
    news = service_side.emit(30)
    pass_time(world, service_side, seconds=1)
    await hint(world, [*news, *(f"evt_forged{number}" for number in range(30))])
    assert await confirm.once() == 30
    assert len(service_side.attempts) - before == 50
    assert backfill.wake.is_set()
    report = await backfill.once()
    assert report.pages <= 35, "it goes on where the other was cut"
    assert {event.id for event in await world.published()} == {*missed, *news}


@pytest.mark.parametrize("forged_count", [0, 60])
async def test_while_a_long_walk_from_the_oldest_event_on_is_under_way_fresh_hints_cost_one_read_each(
    world: World, clock: SteppedClock, forged_count: int
) -> None:
    # case: B5, B23, I15
    async with simulated(clock, events_order="oldest_first") as service_side:
        world.api = service_side.api
        service_side.emit(500)
        held = HeldPublisher(world.broker, EVENTS, pages=2)
        confirm, backfill = stages(world, held)
        walking = asyncio.create_task(backfill.once())
        async with asyncio.timeout(20):
            await held.reached.wait()
        news = service_side.emit(60)
        forged = [f"evt_forged{number}" for number in range(forged_count)]
        await hint(world, [*forged, *news])
        began, most_s = clock.monotonic(), (len(news) + 2 * forged_count) / 2 + 5
        while await _any_waits(world, news):
            if not await confirm.once():
                clock.advance(0.2)
            assert clock.monotonic() - began <= most_s, "two a second, and no wait for the walk"
        reads = [attempt.route for attempt in service_side.attempts]
        assert len(news) <= reads.count("/v1/events/{id}") <= len(news) + 2 * forged_count
        held.gate.set()
        report = await walking
        lists = [attempt.route for attempt in service_side.attempts].count("/v1/events")
        assert lists == report.pages == 6, "nobody walked it twice"
        found = [event.id for event in await world.published() if event.id in set(news)]
        assert sorted(found) == sorted(news), "each was published once"


async def _any_waits(world: World, ids: Sequence[str]) -> bool:
    async with world.database.reading() as session:
        return bool(await hints.ids_of(session, "default", ids))


@pytest.mark.parametrize("size", [500, 4000])
async def test_once_the_list_is_walked_fresh_hints_cost_the_same_however_long_it_is(
    world: World, clock: SteppedClock, size: int
) -> None:
    # case: B5, B6, I15
    async with simulated(clock, events_order="oldest_first") as service_side:
        world.api = service_side.api
        service_side.emit(size)
        confirm, backfill = stages(world)
        await backfill.once()
        for _ in range(3):
            news = service_side.emit(150)
            await hint(world, news)
            before = len(service_side.attempts)
            assert await confirm.once() == 150
            assert len(service_side.attempts) - before <= 6, "the head, the overlap, and what is new"
        assert await waiting(world) == 0


async def test_an_event_that_is_readable_but_not_listed_is_read_before_it_would_be_refused(
    broker: EmbeddedBroker, sqlite_ledger: Database, service: ScriptedService, api: ApplicationApi, clock: SteppedClock
) -> None:
    # case: U8, U30
    world = World(broker=broker, database=sqlite_ledger, service=service, api=api, clock=clock)
    service.lists["/v1/events"] = lambda cursor, limit: {"items": [], "next_cursor": None}
    unlisted = service.event(1)["id"]
    await hint(world, [unlisted, *(f"evt_forged{number}" for number in range(100))])
    confirm, _ = stages(world)
    for _ in range(400):
        await confirm.once()
        clock.advance(5)
    assert [event.id for event in await world.published()] == [unlisted]
    async with world.database.reading() as session:
        assert await quarantine.count(session) == 100


async def test_a_webhook_of_what_was_just_published_costs_no_read_while_the_workers_lag(
    world: World, service_side: Simulated
) -> None:
    # case: B4
    ids = service_side.emit(5)
    _, backfill = stages(world)
    await backfill.once()
    before = len(service_side.attempts)
    await hint(world, ids)
    confirm = Confirm(world.app, backfill.settlement, catch_up=CatchUp(backfill))
    assert await confirm.once() == 5
    assert len(service_side.attempts) == before
    assert await waiting(world) == 0


@pytest.mark.slow
async def test_ten_thousand_forged_among_a_thousand_real_cost_their_share_and_delay_nobody(
    world: World, service_side: Simulated
) -> None:
    # case: I15, I17, B23, O6
    real = service_side.emit(1000)
    forged = [f"evt_forged{number}" for number in range(10_000)]
    mixed = [one for number in range(1000) for one in (*forged[number * 10 : number * 10 + 10], real[number])]
    await hint(world, mixed)
    confirm, _ = stages(world)
    began = world.clock.monotonic()
    await confirm.once()
    assert {event.id for event in await world.published()} == set(real)
    assert world.clock.monotonic() - began < 30, "all real ones are there after one walk"

    read: list[tuple[float, int]] = []
    late = 0.0
    trickle: list[str] = []
    while await waiting(world):
        if len(trickle) < 10:
            trickle += service_side.emit(1)
            await hint(world, trickle[-1:])
            came_at = world.clock.monotonic()
            while await _waits(world, trickle[-1]):
                await confirm.once()
                world.clock.advance(1)
                read.append((world.clock.monotonic(), len(service_side.attempts)))
            late = max(late, world.clock.monotonic() - came_at)
        await confirm.once()
        world.clock.advance(1)
        read.append((world.clock.monotonic(), len(service_side.attempts)))
    reads = max(_reads_until(read, number) for number in range(len(read)))
    print(f"10,000 forged: a real one waited {late:.0f} s at most; {reads / 3:.0f} % of the budget in the worst minute")
    assert late <= 10, f"a real event waited {late} s behind forged ones"
    assert reads <= 300 / 3, f"{reads} reads in one minute"
    async with world.database.reading() as session:
        assert await quarantine.count(session) == 10_000
    assert {event.id for event in await world.published()} == set(real + trickle)


def _reads_until(read: Sequence[tuple[float, int]], number: int) -> int:
    """How many of the reads so far were made in the minute before that one."""
    at, reads = read[number]
    return reads - min(count for then, count in read[: number + 1] if then >= at - 60)


async def _waits(world: World, event_id: str) -> bool:
    async with world.database.reading() as session:
        return bool(await hints.ids_of(session, "default", [event_id]))
