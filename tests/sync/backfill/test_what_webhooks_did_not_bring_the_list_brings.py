"""Backfill: what webhooks did not bring, the list brings, once, within the budget, and whatever breaks on the way."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from consumer.broker import EmbeddedBroker
from consumer.errors import BrokerUnavailable, LeaseLost
from consumer.events import Event, Source, Trust
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.reading import quarantine, sync_state
from consumer.lists.bookmark import WALK, Bookmark, ListOrder
from consumer.lists.progress import Progress
from consumer.payments import AuthenticationError, CircuitOpen, PaymentsError
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.page import understand
from consumer.sync.backfill.report import BackfillOptions
from consumer.wire import plan_of
from tests.sync.backfilling import backfill
from tests.sync.conftest import EVENTS, Simulated, SteppedClock, World, counted_by, read_all, simulated
from tests.sync.service import ScriptedService


@pytest.fixture
def world(world: World, service_side: Simulated) -> World:
    world.api = service_side.api
    return world


async def bookmark(world: World) -> Bookmark:
    async with world.database.reading() as session:
        return Bookmark.load(await sync_state.load(session, "default", WALK))


async def ids(world: World) -> list[str]:
    return [event.id for event in await world.published()]


async def test_a_walk_publishes_what_the_ledger_lacks_and_nothing_else(world: World, service_side: Simulated) -> None:
    # case: B4, B27, G3
    wanted = service_side.emit(250)
    async with world.database.transaction() as session:
        seen_by_webhook = [event for event in await _all_events(service_side, world) if event.id in set(wanted[::2])]
        await events.record(session, seen_by_webhook, world.clock.now())
    report = await backfill(world).once()
    assert (report.listed, report.known, report.published) == (250, 125, 125)
    found = await world.published()
    assert {event.id for event in found} == set(wanted[1::2])
    assert {(event.trust, event.source) for event in found} == {(Trust.READ, Source.BACKFILL)}
    assert len(found) == 125


async def _all_events(service_side: Simulated, world: World) -> list[Event]:
    items = [item async for item in service_side.api.client.events.iterate()]
    return list(understand(items, replace(world.app, api=service_side.api)).events)


async def test_a_second_walk_reads_one_page_and_the_overlap_and_publishes_only_news(
    world: World, service_side: Simulated
) -> None:
    # case: B6, B10, B34
    service_side.emit(500)
    stage = backfill(world)
    first = await stage.once()
    assert first.pages == 5
    await world.work()
    news = service_side.emit(3)
    report = await backfill(world, token=2).once()
    assert report.published == 3
    assert report.pages <= 3
    assert set(await ids(world)) >= set(news)
    assert (await bookmark(world)).order is ListOrder.NEWEST_FIRST


async def test_what_was_just_published_is_not_published_again_while_the_workers_lag(
    world: World, service_side: Simulated
) -> None:
    # case: B4
    service_side.emit(10)
    stage = backfill(world)
    await stage.once()
    assert (await stage.once()).published == 0
    assert len(await ids(world)) == 10


@pytest.mark.parametrize("order", ["newest_first", "oldest_first"])
@pytest.mark.parametrize("cursor", ["exclusive", "inclusive"])
@pytest.mark.parametrize(
    "shape",
    [
        {"event_type_field": "type", "event_container": "data.object", "event_payload": "snapshot"},
        {"event_type_field": "event", "event_container": "data", "event_payload": "thin"},
        {"event_type_field": "event_type", "event_container": "flat", "event_payload": "snapshot"},
    ],
    ids=["type-object", "event-data-thin", "event_type-flat"],
)
async def test_order_cursor_and_envelope_make_no_difference(
    world: World, clock: SteppedClock, order: str, cursor: str, shape: dict[str, str]
) -> None:
    # case: B5, B12, I9
    async with simulated(clock, events_order=order, events_cursor=cursor, **shape) as service_side:
        world.api = service_side.api
        wanted = service_side.emit(230)
        stage = backfill(world)
        await stage.once()
        wanted += service_side.emit(120)
        report = await stage.once()
        assert report.order.value == order
        found = await world.published()
        assert sorted(event.id for event in found) == sorted(wanted)
        assert {event.type for event in found} == {"order.paid"}


async def test_a_dry_run_publishes_and_stores_nothing(world: World, service_side: Simulated) -> None:
    # case: B31
    service_side.emit(150)
    report = await backfill(world).once(BackfillOptions(dry_run=True))
    assert (report.published, report.dry_run) == (150, True)
    assert await ids(world) == []
    assert (await bookmark(world)).walked_at is None


async def test_a_full_walk_goes_to_the_end_and_leaves_the_bookmark_alone(world: World, service_side: Simulated) -> None:
    # case: B10
    service_side.emit(400)
    stage = backfill(world)
    await stage.once()
    before = await bookmark(world)
    report = await stage.once(BackfillOptions(full=True))
    assert (report.listed, report.published) == (400, 0)
    assert await bookmark(world) == before


async def test_since_takes_only_what_is_younger_and_stops_there(world: World, service_side: Simulated) -> None:
    # case: B34
    service_side.emit(500)
    service_side.sandbox.clock.advance_to(service_side.sandbox.clock.now() + timedelta(hours=1))
    since = service_side.sandbox.clock.now()
    young = service_side.emit(30)
    report = await backfill(world).once(BackfillOptions(since=since))
    assert sorted(await ids(world)) == sorted(young)
    assert report.pages == 2


async def test_the_first_walk_leaves_history_alone_until_it_is_seeded(world: World, service_side: Simulated) -> None:
    # case: B30
    old = service_side.emit(250)
    later = service_side.sandbox.clock.now() + timedelta(days=1)
    service_side.sandbox.clock.advance_to(later)
    world.clock.advance((later - world.clock.now()).total_seconds())
    young = service_side.emit(5)
    stage = backfill(world)
    report = await stage.once()
    assert report.history > 0
    assert sorted(await ids(world)) == sorted(young)
    assert counted_by(world.metrics, "events_history", "default") > 0
    await world.work()
    assert (await backfill(world, token=2).once()).published == 0, "what is read again for the overlap stays history"
    assert counted_by(world.metrics, "events_history", "default") == report.history, "and is not forgotten"
    seeded = await backfill(world, token=3).once(BackfillOptions(seed=True, full=True))
    assert seeded.published == 250
    assert (await backfill(world, token=4).once()).published == 0
    assert counted_by(world.metrics, "events_history", "default") == 0, "somebody has seen to it"
    plans = {plan_of(one.headers) for one in await read_all(world.broker, EVENTS)}
    assert plans == {None, "seed"}
    assert sorted(await ids(world)) == sorted(old + young)


async def test_refused_credentials_stop_the_walk_at_once_and_it_goes_on_later(
    world: World, service_side: Simulated
) -> None:
    # case: B25, S5, S6
    wanted = service_side.emit(300)
    stage = backfill(world)
    service_side.sandbox.engine.applications.change_merchant("mer_sandbox", active=False)
    for _ in range(5):
        with pytest.raises((AuthenticationError, CircuitOpen)):
            await stage.once()
    assert await ids(world) == []
    service_side.sandbox.engine.applications.change_merchant("mer_sandbox", active=True)
    world.clock.advance(31)
    await stage.once()
    assert sorted(await ids(world)) == sorted(wanted)


async def test_a_broker_that_fails_half_way_leaves_no_hole(world: World, service_side: Simulated) -> None:
    # case: B10, G5
    wanted = service_side.emit(500)
    stage = backfill(world)
    pages = 0

    def stop_the_broker(progress: Progress) -> None:
        nonlocal pages
        pages = progress.pages
        if pages == 2:
            raise BrokerUnavailable

    with pytest.raises(BrokerUnavailable):
        await stage.once(on_progress=stop_the_broker)
    assert (await bookmark(world)).resume is not None
    report = await backfill(world, token=2).once()
    assert report.pages <= 5, "the second page is not walked again"
    assert set(await ids(world)) == set(wanted)


async def test_a_leader_that_was_replaced_moves_no_bookmark(world: World, service_side: Simulated) -> None:
    # case: B26
    service_side.emit(10)
    await backfill(world, token=9).once()
    before = await bookmark(world)
    service_side.emit(1)
    with pytest.raises(LeaseLost):
        await backfill(world, token=3).once()
    assert await bookmark(world) == before


async def test_an_outage_longer_than_retention_is_said(world: World, clock: SteppedClock) -> None:
    # case: B13, U7
    async with simulated(clock, retention_s=3600) as service_side:
        world.api = service_side.api
        service_side.emit(20)
        stage = backfill(world)
        await stage.once()
        service_side.emit(50)
        service_side.sandbox.clock.advance_to(service_side.sandbox.clock.now() + timedelta(hours=7))
        world.clock.advance(7 * 3600)
        service_side.emit(5)
        service_side.sandbox.engine.events.purge()
        report = await stage.once()
        assert report.gap
        assert counted_by(world.metrics, "retention_gaps", "default") == 1
        assert not (await stage.once()).gap


async def test_a_listed_record_that_is_not_understood_is_kept_and_does_not_stop_the_walk(
    broker: EmbeddedBroker, sqlite_ledger: Database, service: ScriptedService, api: object, clock: SteppedClock
) -> None:
    # case: U1, B8
    assert isinstance(api, ApplicationApi)
    world = World(broker=broker, database=sqlite_ledger, service=service, api=api, clock=clock)
    listed = service.records["/v1/events/evt_1"] = {"id": "evt_1", "type": "order.paid"}
    items = [listed, {"odd": True}, listed]
    service.lists["/v1/events"] = lambda cursor, limit: {"items": items, "next_cursor": None}
    report = await backfill(world).once()
    assert (report.published, report.strange) == (1, 1)
    await backfill(world, token=2).once()
    async with world.database.reading() as session:
        assert [row.reason for row in await quarantine.newest(session)] == ["not_understood"]


async def test_progress_tells_share_and_time_left(world: World, service_side: Simulated) -> None:
    # case: B29
    service_side.emit(300)
    stage = backfill(world)
    await stage.once()
    world.clock.advance(1000)
    service_side.emit(1000)
    seen: list[Progress] = []
    await stage.once(on_progress=seen.append)
    shares = [one.share for one in seen if one.share is not None]
    assert shares == sorted(shares)
    assert len(shares) >= 10
    assert seen[-1].listed >= 1000
    assert await stage.app.api.predict_s(300) > 50


@pytest.mark.slow
async def test_thirty_thousand_missed_events_come_back_at_the_limits_pace_in_flat_memory(
    broker: EmbeddedBroker, sqlite_ledger: Database, service: ScriptedService, clock: SteppedClock
) -> None:
    # case: B23, B24, G3
    async with simulated(clock) as service_side:
        world = World(broker=broker, database=sqlite_ledger, service=service, api=service_side.api, clock=clock)
        service_side.emit(30_000)
        stage = backfill(world)
        resident: list[int] = []

        def measure(progress: Progress) -> None:
            if progress.pages % 50 == 0:
                resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)

        began = clock.monotonic()
        report = await stage.once(on_progress=measure)
        seconds = clock.monotonic() - began
        assert report.published == 30_000
        assert report.pages == 300
        growth = resident[-1] - resident[1]
        # 300 requests a minute are the ceiling of one address: 300 pages take a minute at best.
        print(f"{report.pages} pages in {seconds:.1f} s: {60 / seconds:.1%} of the ceiling, {growth} bytes more")
        assert 60 * 0.95 <= seconds <= 60 / 0.95
        assert growth < 24 * 2**20, f"{growth} bytes more after 20,000 events"
        async with world.database.reading() as session:
            assert await sync_state.load(session, "default", WALK)


async def test_the_loop_outlives_failures_and_stops_within_seconds(world: World, service_side: Simulated) -> None:
    # case: S4, I4
    wanted = service_side.emit(10)
    service_side.sandbox.engine.applications.change_merchant("mer_sandbox", active=False)
    stage = backfill(world)
    stop = asyncio.Event()
    running = asyncio.create_task(stage.run(stop))
    async with asyncio.timeout(20):
        while stage.failure.times < 3:  # noqa: ASYNC110 - the stage has no event for its failures
            await asyncio.sleep(0)
        service_side.sandbox.engine.applications.change_merchant("mer_sandbox", active=True)
        while len(await ids(world)) < len(wanted):  # noqa: ASYNC110 - the log is looked at from outside
            await asyncio.sleep(0.01)
        stop.set()
        await running
    with suppress(PaymentsError):
        await stage.once()
    assert sorted(await ids(world)) == sorted(wanted)


async def test_a_listed_event_that_no_topic_takes_is_kept_and_holds_up_nothing(
    broker: EmbeddedBroker, sqlite_ledger: Database, service: ScriptedService, api: ApplicationApi, clock: SteppedClock
) -> None:
    # case: U1, G3
    world = World(broker=broker, database=sqlite_ledger, service=service, api=api, clock=clock)
    listed = [service.event(number, note="x" * (3 * 2**20 if number == 2 else 1)) for number in (3, 2, 1)]
    service.lists["/v1/events"] = lambda cursor, limit: {"items": listed, "next_cursor": None}
    report = await backfill(world).once()
    assert (report.listed, report.published, report.strange) == (3, 2, 1)
    assert set(await ids(world)) == {"evt_000001", "evt_000003"}
    async with world.database.reading() as session:
        [kept] = await quarantine.newest(session)
    assert (kept.event_id, kept.reason) == ("evt_000002", "too_large")
    assert (await bookmark(world)).walked_at is not None
