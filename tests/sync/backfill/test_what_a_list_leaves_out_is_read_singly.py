"""A list may show less of an event than a read of it does, down to its id (case B22): what it leaves out is read before
anything is decided. Published as it is listed, an event would count as handled, and its webhook as a copy."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from consumer.errors import UsageError
from consumer.events import Event, Source, Trust
from consumer.ledger.handling import events as ledger_events
from consumer.ledger.reading import hints, quarantine
from consumer.lists.bookmark import Bookmark
from consumer.lists.progress import Progress
from consumer.payments import ApiError, EventRecord, PaymentsError, ServiceUnreachable, UnexpectedAnswer
from consumer.sync.application import Application
from consumer.sync.backfill import cutover, missing_events, unread
from consumer.sync.backfill.catch_up import CatchUp, Coverage
from consumer.sync.backfill.cutover import Began, SeenTo
from consumer.sync.backfill.page import FAILED_MAX, VAIN_MAX, WholeEvents, understand
from consumer.sync.backfill.report import BackfillOptions
from consumer.sync.backfill.silence import DeliveryHealth
from consumer.sync.backfill.stage import Backfill
from consumer.sync.backfill.unread import REFUSED_FOR, TRIES_MIN, UNANSWERED_FOR
from consumer.sync.health.status import application_status
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


def path_of(event: Json) -> str:
    return f"/v1/events/{event['id']}"


def reads_of(service: ScriptedService, events: list[Json]) -> int:
    return sum(service.calls[path_of(one)] for one in events)


@pytest.mark.parametrize("more", [{}, {"read": "now"}])
async def test_where_a_read_says_no_more_few_are_made(world: World, service: ScriptedService, more: Json) -> None:
    # case: B22, B23, U1
    listed_in_brief(service, events := [service.event(number) for number in range(100)])
    service.records |= {path_of(one): {"id": one["id"], **more} for one in events}
    report = await backfill(world).once()
    assert report.published == 100, "archived, and handled by nobody (case I7)"
    assert reads_of(service, events) == VAIN_MAX


async def test_what_a_hint_announced_is_read_also_where_reads_are_in_vain(
    world: World, service: ScriptedService
) -> None:
    # case: B22, I16
    brief = [service.event(number) for number in range(2 * VAIN_MAX)]
    told = [service.event(len(brief) + number, order_id=f"A-{number}") for number in range(2)]
    listed_in_brief(service, [*brief, *told])
    service.records |= {path_of(one): {"id": one["id"]} for one in brief}
    await hint(world, [one["id"] for one in told])
    await backfill(world).once()
    assert sorted(one.id for one in await world.published() if is_whole(one)) == [one["id"] for one in told]


@pytest.mark.parametrize("shown", [("id",), ("id", "type")])
async def test_odd_events_switch_no_reads_off(world: World, service: ScriptedService, shown: tuple[str, ...]) -> None:
    # case: B22, I7
    odd = [service.event(number, kind="ping") for number in range(VAIN_MAX - 1)]
    service.records |= {path_of(one): {"id": one["id"], "type": "ping"} for one in odd}
    good = [service.event(number, order_id=f"A-{number}") for number in range(len(odd), len(odd) + 10)]
    service.lists["/v1/events"] = lambda _cursor, _limit: {
        "items": [{name: one[name] for name in shown} for one in [*odd, *good]],
        "next_cursor": None,
    }
    await backfill(world).once()
    assert sorted(one.id for one in await world.published() if is_whole(one)) == [one["id"] for one in good]


async def pass_walks(world: World, stage: Backfill, seconds: float) -> None:
    """The loop walks each half minute, and each walk says that events could not be read."""
    end = world.clock.monotonic() + seconds
    while world.clock.monotonic() < end:
        assert (await stage.once()).unread
        world.clock.advance(30)


async def types(world: World) -> dict[str, str]:
    return {one.id: one.type for one in await world.published()}


@pytest.mark.parametrize("status", [503, 404])
@pytest.mark.parametrize("is_hinted", [True, False])
async def test_a_short_fault_of_single_reads_publishes_nothing_in_brief(
    world: World, service: ScriptedService, status: int, is_hinted: bool
) -> None:
    # case: B22, G7, U30
    events = [service.event(number, order_id=f"A-{number}") for number in range(20)]
    listed_in_brief(service, events)
    broken = [one["id"] for one in events[:3]]
    if is_hinted:
        await hint(world, broken)
    service.failing |= {path_of(one): status for one in events[:3]}
    stage = backfill(world)
    await pass_walks(world, stage, 300)
    assert await types(world) == {one["id"]: "order.paid" for one in events[3:]}, "no other waits for them"
    service.failing.clear()
    await stage.once()
    assert await types(world) == {one["id"]: "order.paid" for one in events}
    assert len(await world.published()) == len(events)


async def test_many_that_fail_keep_the_others_waiting_for_a_walk_only(world: World, service: ScriptedService) -> None:
    # case: B22, G7
    events = [service.event(number, order_id=f"A-{number}") for number in range(20)]
    listed_in_brief(service, events)
    service.failing |= {path_of(one): 503 for one in events[:8]}
    stage = backfill(world)
    tries = 4  # of a read that is not answered
    for walk in range(1, 5):
        asked = reads_of(service, events[:8])
        assert (await stage.once()).unread
        assert reads_of(service, events[:8]) - asked <= 2 * FAILED_MAX * tries, f"walk {walk}"
    assert await types(world) == {one["id"]: "order.paid" for one in events[8:]}


@pytest.mark.parametrize(("status", "patience"), [(404, REFUSED_FOR), (503, UNANSWERED_FOR)])
async def test_one_that_cannot_be_read_is_taken_as_listed_when_patience_is_over(
    world: World, service: ScriptedService, status: int, patience: timedelta
) -> None:
    # case: B22, G7
    events = [service.event(number, order_id=f"A-{number}") for number in range(3)]
    listed_in_brief(service, events)
    hinted, unhinted, healthy = (one["id"] for one in events)
    await hint(world, [hinted])
    service.failing |= {path_of(one): status for one in events[:2]}
    for _ in range(TRIES_MIN):  # as cron does it: nothing of it is remembered by a process
        assert (await backfill(world).once()).unread == 2
    world.clock.advance(patience.total_seconds() - 60)
    assert (await backfill(world).once()).unread == 2
    assert await types(world) == {healthy: "order.paid"}
    world.clock.advance(60)
    assert (await backfill(world).once()).unread == 0
    assert await types(world) == {healthy: "order.paid", unhinted: "unknown.type"}
    async with world.database.reading() as session:
        assert await hints.count(session, "default") == 1, "which confirm looks after"


def paged(service: ScriptedService, events: list[Json], size: int) -> None:
    def page(cursor: str | None, _limit: int) -> Json:
        begin = int(cursor or 0)
        items = [{"id": one["id"]} for one in events[begin : begin + size]]
        return {"items": items, "next_cursor": str(begin + size) if begin + size < len(events) else None}

    service.lists["/v1/events"] = page


async def test_the_bookmark_goes_on_past_what_cannot_be_read(world: World, service: ScriptedService) -> None:
    """It stayed before the first one: run by a timer, without `sync`, `backfill` failed for ever, and read the list
    from there each time."""
    # case: B22, B10
    events = [service.event(number, order_id=f"A-{number}") for number in range(6)]
    paged(service, events, size=2)
    service.failing |= {path_of(one): 503 for one in events[::2]}
    for _ in range(2):
        report = await backfill(world).once()
        await world.work()
        assert report.unread == 3
    assert await types(world) == {one["id"]: "order.paid" for one in events[1::2]}
    async with world.database.reading() as session:
        assert (await Bookmark.of(session, "default")).walked_at is not None
        found = await application_status(session, "default", "svc_app_test", world.clock.now())
        assert (found.unread, [one.stage for one in found.held_up]) == (3, ["backfill"])
    with pytest.raises(UnexpectedAnswer):
        await backfill(world)._step()
    service.lists["/v1/events"] = lambda _cursor, _limit: {"items": [], "next_cursor": None}  # it is listed no more
    service.failing.clear()
    report = await backfill(world).once()
    assert (report.published, report.unread) == (3, 0)
    assert await types(world) == {one["id"]: "order.paid" for one in events}
    assert len(await world.published()) == len(events)


async def test_a_walk_killed_between_publishing_and_its_bookmark_asks_again_for_what_is_not_known(
    world: World, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: B22, B10
    events = [service.event(number, order_id=f"A-{number}") for number in range(2)]
    listed_in_brief(service, events)
    service.failing[path_of(events[0])] = 503

    class Killed(Exception):
        """kill -9"""

    async def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Application, "keep", killed)
        patched.setattr(cutover.FirstWalk, "begin", lambda *_: asyncio.sleep(0))
        with pytest.raises(Killed):
            await backfill(world).once()
    await world.work()
    service.failing.clear()
    assert (await backfill(world).once()).published == 1
    assert await types(world) == {one["id"]: "order.paid" for one in events}


@pytest.mark.parametrize("bound", ["UNREAD_MAX", "UNREAD_MAX_BYTES"])
async def test_more_than_may_wait_keeps_the_bookmark(
    world: World, service: ScriptedService, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    # case: B22, B10
    monkeypatch.setattr(unread, bound, 3 if bound == "UNREAD_MAX" else 70)
    events = [service.event(number, order_id=f"A-{number}") for number in range(6)]
    paged(service, events, size=2)
    service.failing |= {path_of(one): 503 for one in events}
    for _ in range(2):
        with pytest.raises(ApiError):
            await backfill(world).once()
        async with world.database.reading() as session:
            assert len((await unread.Unread.of(session, "default")).events) == 2
            assert (await Bookmark.of(session, "default")).walked_at is None
    service.failing.clear()
    await backfill(world).once()
    assert await types(world) == {one["id"]: "order.paid" for one in events}


async def test_what_shows_its_time_late_is_history_by_it(world: World, service: ScriptedService) -> None:
    # case: B22, B30
    events = [service.event(number, order_id=f"A-{number}") for number in range(2)]
    listed_in_brief(service, events)
    service.failing[path_of(events[0])] = 503
    await backfill(world).once()
    await world.work()
    service.failing.clear()
    service.records[path_of(events[0])]["created_at"] = (world.clock.now() - timedelta(days=1)).isoformat()
    report = await backfill(world).once()
    assert (report.published, report.unread, report.history) == (0, 0, 1)


async def test_a_walk_for_hints_makes_no_more_reads_than_one_of_a_full_list(
    world: World, service: ScriptedService
) -> None:
    """Fifty pages listed in brief are five thousand reads, a quarter of an hour: what came meanwhile waited for it."""
    # case: B22, B23
    events = [service.event(number, order_id=f"A-{number}") for number in range(200)]
    paged(service, events, size=100)
    await hint(world, [one["id"] for one in events[-30:]])
    assert await CatchUp(backfill(world)).walk() is not Coverage.ALL
    assert reads_of(service, events) == 100


async def test_one_that_the_service_never_answers_for_holds_no_walk_up(
    world: World, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: B22, G7
    raws = [service.event(number, order_id=f"A-{number}") for number in range(2)]
    listed = understand(tuple(EventRecord.read({"id": one["id"]}) for one in raws), world.app).events
    service.records |= {path_of(one): one for one in raws}
    whole = WholeEvents(world.app)
    real = whole._read

    async def hangs(event: Event, *, is_urgent: bool) -> Event | None:
        if event is listed[0]:
            raise ServiceUnreachable(sent=True)
        return await real(event, is_urgent=is_urgent)

    monkeypatch.setattr(whole, "_read", hangs)
    reads = await whole.read(listed, (), unread.Unread())
    assert (set(reads.whole), reads.left) == ({raws[1]["id"]}, {raws[0]["id"]})


@pytest.mark.parametrize("is_said", [True, False])
async def test_a_seed_that_could_not_read_all_keeps_its_cut_over(
    world: World, service: ScriptedService, is_said: bool
) -> None:
    """Typed again and again it never ended, and the loop began an hour before its own first walk: what was paid between
    was left alone."""
    # case: B22, B30
    listed_in_brief(service, events := [service.event(number, order_id=f"A-{number}") for number in range(2)])
    service.failing[path_of(events[0])] = 503
    until = world.clock.now() - timedelta(minutes=1)
    at = {"created_at": (until - timedelta(days=1)).isoformat()}
    service.records |= {path_of(one): one | at for one in events}
    if not is_said:  # else somebody who types it later divides by another moment
        shown = [{"id": one["id"]} | at for one in events]
        service.lists["/v1/events"] = lambda _cursor, _limit: {"items": shown, "next_cursor": None}
    stage = backfill(world)
    report = await stage.once(BackfillOptions(seed=True, full=True, until=until if is_said else None))
    assert (report.unread, report.published, report.left) == (1, 1, 0), "one that is never read fails no seed for ever"
    async with world.database.reading() as session:
        assert report.cut_over is not None
        assert (await Began.of(session, "default")).began == report.cut_over + stage.first_walk.history
        assert (await SeenTo.of(session, "default")).at is None
    service.failing.clear()
    await world.work()
    report = await stage.once(BackfillOptions(seed=True, full=True))
    assert (report.unread, report.published) == (0, 1)
    async with world.database.reading() as session:
        assert (await SeenTo.of(session, "default")).at is not None


@pytest.mark.parametrize("is_said", [True, False])
async def test_a_first_seed_that_could_not_read_what_may_have_no_time_is_to_be_repeated(
    world: World, service: ScriptedService, is_said: bool
) -> None:
    """It said that it was done, and what it had not read was no history to any seed after it: the loop acted on it.
    Typed again it was refused, for no listed event had a time: what had shown one was archived, and read no more."""
    # case: B22, B30
    events = [service.event(number, order_id=f"A-{number}") for number in range(3)]
    listed_in_brief(service, events)
    until = world.clock.now() - timedelta(minutes=1)
    at = {"created_at": (until - timedelta(days=1)).isoformat()}
    untimed = [{name: value for name, value in one.items() if name != "created_at"} for one in events[1:]]
    service.records |= {path_of(one): one for one in (events[0] | at, *untimed)}
    service.failing[path_of(events[2])] = 503
    stage = backfill(world)
    options = BackfillOptions(seed=True, full=True, until=until)
    with pytest.raises(ApiError):
        await stage.once(options)
    async with world.database.reading() as session:
        assert (await Began.of(session, "default")).began is None
    await world.work()
    service.failing.clear()
    assert (await backfill(world).once(options if is_said else replace(options, until=None))).published == 1
    await world.work()
    assert (await stage.once()).published == 0


async def test_times_that_webhooks_showed_divide_no_list_that_shows_none(
    world: World, service: ScriptedService
) -> None:
    """A first seed would archive what has no time, though it happened after the moment that was named."""
    # case: B30
    events = [service.event(number, order_id=f"A-{number}") for number in range(2)]
    listed_in_brief(service, events)
    service.records |= {path_of(one): {name: one[name] for name in one if name != "created_at"} for one in events}
    now = world.clock.now()
    known = Event(
        application="default", id=events[0]["id"], type="order.paid", key="order:A-0", trust=Trust.SIGNED,
        source=Source.WEBHOOK, raw=b"{}", received_at=now, occurred_at=now - timedelta(days=1),
    )  # fmt: skip
    async with world.database.transaction() as session:
        await ledger_events.record(session, [known], now)
    with pytest.raises(UsageError):
        await backfill(world).once(BackfillOptions(seed=True, full=True, until=world.clock.now()))
    assert await world.published() == []


async def test_a_seed_that_could_not_read_many_fails(
    world: World, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: B22, B30
    listed_in_brief(service, events := [service.event(number, order_id=f"A-{number}") for number in range(2)])
    service.failing |= {path_of(one): 503 for one in events}
    options = BackfillOptions(seed=True, full=True, until=world.clock.now() - timedelta(minutes=1))
    assert (await backfill(world).once(options)).unread == 2
    monkeypatch.setattr(missing_events, "UNREAD_MAX", 1)
    with pytest.raises(ApiError):
        await backfill(world).once(options)


async def test_an_outage_uses_up_no_patience(world: World, service: ScriptedService) -> None:
    # case: B22, G7
    events = [service.event(0, order_id="A-0")]
    listed_in_brief(service, events)
    service.failing[path_of(events[0])] = 422
    stage = backfill(world)
    for _ in range(TRIES_MIN - 1):
        await stage.once()
        world.clock.advance(2 * REFUSED_FOR.total_seconds())
    assert await world.published() == []


async def test_one_that_is_old_is_not_refused_because_it_is_new(world: World, service: ScriptedService) -> None:
    # case: B22, U30
    events = [service.event(0, order_id="A-0")]
    at = (world.clock.now() - timedelta(minutes=30)).isoformat()
    service.lists["/v1/events"] = lambda _cursor, _limit: {
        "items": [{"id": events[0]["id"], "type": "order.paid", "created_at": at}],
        "next_cursor": None,
    }
    service.failing[path_of(events[0])] = 404
    await backfill(world).once()
    assert await types(world) == {events[0]["id"]: "order.paid"}


async def test_a_walk_of_the_whole_list_goes_on_and_says_what_it_left(world: World, service: ScriptedService) -> None:
    # case: B22, B30
    events = [service.event(number, order_id=f"A-{number}") for number in range(40)]
    service.lists["/v1/events"] = lambda cursor, _limit: {
        "items": [{"id": one["id"]} for one in (events[20:] if cursor else events[:20])],
        "next_cursor": None if cursor else "next",
    }
    service.failing[path_of(events[0])] = 422
    for _ in range(2):
        with pytest.raises(ApiError):
            await backfill(world).once(BackfillOptions(full=True, seed=True))
        await world.work()
        assert await types(world) == {one["id"]: "order.paid" for one in events[1:]}
    service.failing.clear()
    assert (await backfill(world).once(BackfillOptions(full=True, seed=True))).published == 1


async def test_a_seed_with_a_named_end_is_typed_again(world: World, clock: SteppedClock) -> None:
    # case: B22, B30
    async with simulated(clock, listed_event_shape="id") as service_side:
        world.api = service_side.api
        old = service_side.emit(30)
        pass_time(world, service_side, hours=1)
        until = world.clock.now()
        pass_time(world, service_side, hours=1)
        young = service_side.emit(5)
        options = BackfillOptions(seed=True, full=True, until=until)
        told = await backfill(world).once(replace(options, dry_run=True))
        done = await backfill(world).once(options)
        await world.work()
        again = await backfill(world).once(options)
        assert [(one.published, one.left, one.without_time) for one in (told, done, again)] == [
            (len(old), len(young), 0),
            (len(old), len(young), 0),
            (0, len(young), 0),
        ]
        assert sorted(event.id for event in await world.published()) == sorted(old)
        everything = await backfill(world).once(BackfillOptions(full=True))
        assert everything.published == len(young)
        await world.work()
        assert (await backfill(world).once(options)).published == 0, "nothing is left that a moment could divide"


@pytest.mark.parametrize("options", [BackfillOptions(), BackfillOptions(full=True, seed=True)])
async def test_what_a_cut_walk_has_read_is_settled(
    world: World, service: ScriptedService, options: BackfillOptions
) -> None:
    # case: B22, B10, B25
    events = [service.event(number, order_id=f"A-{number}") for number in range(3)]
    listed_in_brief(service, events)
    service.failing[path_of(events[1])] = 401
    with pytest.raises(PaymentsError):
        await backfill(world).once(options)
    assert await types(world) == {events[0]["id"]: "order.paid"}
    async with world.database.reading() as session:
        assert (await Bookmark.of(session, "default")).walked_at is None
    await world.work()
    service.failing.clear()
    world.clock.advance(600)
    await backfill(world).once(options)
    assert await types(world) == {one["id"]: "order.paid" for one in events}
    assert service.calls[path_of(events[0])] == 1


@pytest.mark.parametrize("status", [429, 401])
async def test_a_gap_is_noted_before_what_waits_is_asked_for_again(
    world: World, service: ScriptedService, status: int
) -> None:
    """The bookmark is past the gap by then: cut while it asked, the walk left a gap that no later one saw."""
    # case: B13, B22, O1
    events = [service.event(number, order_id=f"A-{number}") for number in range(6)]
    for number, one in enumerate(events):  # the last four are a day younger
        at = world.clock.now() + timedelta(days=int(number > 1)) - timedelta(seconds=60 - number)
        one["created_at"] = at.isoformat()
    waiting, seen, *rest = events
    brief = {"id": waiting["id"], "created_at": waiting["created_at"]}
    service.lists["/v1/events"] = lambda _cursor, _limit: {"items": [seen, brief], "next_cursor": None}
    service.failing[path_of(waiting)] = 503
    stage = backfill(world)
    assert (await stage.once()).unread == 1
    await world.work()
    world.clock.advance(86_400)
    service.lists["/v1/events"] = lambda _cursor, _limit: {"items": rest[::-1], "next_cursor": None}
    service.failing[path_of(waiting)] = status
    with pytest.raises(PaymentsError):
        await stage.once()
    async with world.database.reading() as session:
        found = await DeliveryHealth.of(session, "default")
    assert (found.gap_at is not None, len(found.pending)) == (True, len(rest))
    assert stage._reconcile_due.is_set()


async def test_what_was_asked_for_again_is_noted_too(world: World, service: ScriptedService) -> None:
    # case: B22, B30, O1
    old, young = events = [service.event(number, order_id=f"A-{number}") for number in range(2)]
    listed_in_brief(service, events)
    service.failing |= {path_of(one): 503 for one in events}
    assert (await backfill(world).once()).unread == 2
    service.lists["/v1/events"] = lambda _cursor, _limit: {"items": [], "next_cursor": None}
    service.failing.clear()
    old["created_at"] = (world.clock.now() - timedelta(days=1)).isoformat()
    report = await backfill(world).once()
    assert (report.published, report.history, report.unread) == (1, 1, 0)
    async with world.database.reading() as session:
        assert (await DeliveryHealth.of(session, "default")).pending == (young["id"],)
        assert await cutover.left_alone(session, "default") == 1


@pytest.mark.parametrize("dry_run", [True, False])
async def test_what_holds_all_calls_up_ends_a_dry_run_too(
    world: World, service: ScriptedService, dry_run: bool
) -> None:
    # case: B22, B25
    listed_in_brief(service, events := [service.event(number, order_id=f"A-{number}") for number in range(2)])
    service.failing[path_of(events[0])] = 401
    with pytest.raises(PaymentsError):
        await backfill(world).once(BackfillOptions(dry_run=dry_run))


async def test_a_look_at_the_newest_comes_back_for_what_it_could_not_read(
    world: World, service: ScriptedService
) -> None:
    # case: B22, B23
    listed: list[Json] = []

    def emit(number: int) -> None:
        one = service.event(number, order_id=f"A-{number}")
        at = world.clock.now() - timedelta(minutes=30) + timedelta(seconds=number)
        listed.insert(0, {"id": one["id"], "type": one["type"], "created_at": at.isoformat()})

    def page(cursor: str | None, _limit: int) -> Json:
        begin = int(cursor or 0)
        return {"items": listed[begin : begin + 10], "next_cursor": str(begin + 10) if begin < 30 else None}

    class Cut(Exception):
        """The walk is under way, and will be for long."""

    def cut(_: Progress) -> None:
        raise Cut

    for number in range(40):
        emit(number)
    service.lists["/v1/events"] = page
    stage = backfill(world)
    with pytest.raises(Cut):
        await stage.once(on_progress=cut)
    emit(40)
    await hint(world, ["evt_000040"])
    service.failing["/v1/events/evt_000040"] = 503
    catch_up = CatchUp(stage)
    async with stage.walking:
        with pytest.raises(ApiError):
            await catch_up.walk()
        service.failing.clear()
        assert await catch_up.walk() is Coverage.NEWEST
    assert (await types(world))["evt_000040"] == "order.paid"
    assert all(is_whole(event) for event in await world.published())


async def test_looks_beside_a_walk_come_to_all_that_is_new(world: World, service: ScriptedService) -> None:
    """A look ends after so many reads, which is one page listed in brief: the next one met what it had seen there, and
    hints of the second page waited for the end of the walk."""
    # case: B22, B23, C15
    events = [service.event(number, order_id=f"A-{number}") for number in range(100)]
    listed = [
        {"id": one["id"], "created_at": (world.clock.now() - timedelta(seconds=number)).isoformat()}
        for number, one in enumerate(events)
    ]
    pages: list[int] = []

    def page(cursor: str | None, _limit: int) -> Json:
        pages.append(begin := int(cursor or 0))
        return {"items": listed[begin : begin + 30], "next_cursor": str(begin + 30) if begin < 90 else None}

    service.lists["/v1/events"] = page
    stage = backfill(world)
    catch_up = CatchUp(stage)
    async with stage.walking:
        for look in range(1, 5):
            assert await catch_up.walk() is Coverage.NEWEST
            assert reads_of(service, events) == min(30 * look, len(events))
        pages.clear()
        for _ in range(2):
            assert await catch_up.walk() is Coverage.NEWEST
    assert pages == [0, 0], "where all was seen, a look ends where it began"
    assert await types(world) == {one["id"]: "order.paid" for one in events}
