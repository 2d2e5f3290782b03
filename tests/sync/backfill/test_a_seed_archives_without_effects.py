"""A seed: history up to the cut-over is archived without effects, and nothing that was paid after it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from consumer.broker import EmbeddedBroker
from consumer.errors import UsageError
from consumer.events import Event, Source, Trust
from consumer.ledger import Database
from consumer.ledger.reading import hints, sync_state
from consumer.ledger.tables import OutboxRow
from consumer.lists.bookmark import Bookmark, ListOrder
from consumer.lists.progress import Progress
from consumer.plugin import Context, handles
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill import cutover
from consumer.sync.backfill.cutover import CutOver, FirstWalk
from consumer.sync.backfill.report import BackfillOptions
from consumer.wire import plan_of
from tests.support.ports import eventually
from tests.sync.backfilling import backfill
from tests.sync.conftest import EVENTS, Simulated, SteppedClock, World, delivery, pass_time, read_all
from tests.sync.service import ScriptedService
from tests.work.workshop import Workshop

SEED = BackfillOptions(seed=True, full=True)


@pytest.fixture
def world(world: World, service_side: Simulated) -> World:
    world.api = service_side.api
    return world


async def plans(world: World) -> dict[str, str | None]:
    """Event id to the plan it was published with first."""
    records = await read_all(world.broker, EVENTS)
    found: dict[str, str | None] = {}
    for event, record in zip(await world.published(), records, strict=True):
        found.setdefault(event.id, plan_of(record.headers))
    return found


async def test_the_very_first_seed_ends_where_it_began_and_the_loop_goes_on_from_there(
    world: World, service_side: Simulated
) -> None:
    # case: B30
    old = service_side.emit(150)
    pass_time(world, service_side, seconds=1)
    tried = await backfill(world).once(BackfillOptions(seed=True, dry_run=True))
    assert (tried.published, tried.left, await plans(world)) == (150, 0, {})
    began = world.clock.now()
    report = await backfill(world).once(BackfillOptions(seed=True))
    assert (report.published, report.left, report.cut_over, report.without_time) == (150, 0, began, 0)
    assert await plans(world) == dict.fromkeys(old, "seed")
    await world.work()
    after = service_side.emit(3)
    pass_time(world, service_side, hours=5)
    started = await backfill(world, token=2).once()
    assert (started.published, started.history) == (3, 0), "what came between the seed and the first walk is acted on"
    assert await plans(world) == dict.fromkeys(old, "seed") | dict.fromkeys(after)


async def test_beside_a_running_deployment_a_seed_leaves_what_is_announced_or_younger(
    world: World, service_side: Simulated
) -> None:
    # case: B30
    old = service_side.emit(5)
    pass_time(world, service_side, days=1)
    await backfill(world).once()
    assert await plans(world) == {}
    young = service_side.emit(4)
    pass_time(world, service_side, seconds=1)
    async with world.database.transaction() as session:
        told = [delivery(b"{}", number, event_id=one) for number, one in enumerate((old[0], young[0]))]
        await hints.keep(session, told, world.clock.now())
    report = await backfill(world, token=2).once(SEED)
    assert (report.published, report.left) == (4, 5)
    assert await plans(world) == dict.fromkeys(old[1:], "seed")
    async with world.database.reading() as session:
        waiting = await hints.ids_of(session, "default", old + young)
    assert set(waiting) == {old[0], young[0]}, "what a webhook told is left to be confirmed"
    await world.work()
    await backfill(world, token=3).once()
    assert await plans(world) == dict.fromkeys(old[1:], "seed") | dict.fromkeys([old[0], *young])


async def test_an_operator_may_name_the_cut_over(world: World, service_side: Simulated) -> None:
    # case: B30
    old = service_side.emit(5)
    pass_time(world, service_side, hours=3)
    cut_over = world.clock.now()
    young = service_side.emit(3)
    pass_time(world, service_side, hours=3)
    stage = backfill(world)
    with pytest.raises(UsageError):
        await stage.once(BackfillOptions(seed=True, until=world.clock.now() + timedelta(seconds=1)))
    report = await stage.once(BackfillOptions(seed=True, full=True, until=cut_over))
    assert (report.published, report.left, report.cut_over) == (5, 3, cut_over)
    await world.work()
    assert (await backfill(world, token=2).once()).published == 3, "effects start at the cut-over, hours ago or not"
    assert await plans(world) == dict.fromkeys(old, "seed") | dict.fromkeys(young)


async def test_after_the_first_walk_a_seed_says_how_far_it_goes(world: World, service_side: Simulated) -> None:
    # case: B30
    service_side.emit(2)
    await backfill(world).once()
    await world.work()
    service_side.emit(2)
    with pytest.raises(UsageError):
        await backfill(world).once(BackfillOptions(seed=True))
    with pytest.raises(UsageError):
        await backfill(world).once(BackfillOptions(seed=True, dry_run=True))
    assert (await backfill(world, token=2).once()).published == 2


async def test_without_times_only_the_very_first_seed_takes_anything(
    broker: EmbeddedBroker, sqlite_ledger: Database, service: ScriptedService, api: ApplicationApi, clock: SteppedClock
) -> None:
    # case: B30, U6
    world = World(broker=broker, database=sqlite_ledger, service=service, api=api, clock=clock)
    listed = [service.event(number, order_id=f"A-{number}") for number in range(3)]
    service.lists["/v1/events"] = lambda cursor, limit: {"items": listed, "next_cursor": None}
    with pytest.raises(UsageError):
        await backfill(world).once(BackfillOptions(seed=True, until=clock.now()))
    report = await backfill(world).once(SEED)
    assert (report.published, report.without_time, report.left) == (3, 3, 0)
    await world.work()
    listed.append(service.event(9, order_id="A-9"))
    again = await backfill(world).once(SEED)
    assert (again.published, again.left) == (0, 1)
    assert "evt_000009" not in await plans(world)


async def test_what_is_paid_while_a_seed_walks_is_fulfilled(world: World, service_side: Simulated) -> None:
    # case: B30
    @handles("order.paid", name="test:paid", transactional=True)
    async def paid(event: Event, ctx: Context) -> None:
        ctx.emit("shop.requested", event.key, {"cause": event.id})

    shop = Workshop(world.database, world.broker, [paid])
    old = service_side.emit(250)
    pass_time(world, service_side, days=1)
    await backfill(world).once()
    during: list[str] = []

    def pay(progress: Progress) -> None:
        during.extend(service_side.emit(2))
        pass_time(world, service_side, seconds=1)

    async with shop.working():
        await backfill(world, token=2).once(SEED, on_progress=pay)
        during += service_side.emit(1)
        assert len(during) >= 7
        await eventually(lambda: shop.count("test:paid", "succeeded", 250))
        await backfill(world, token=3).once(SEED)
        await backfill(world, token=4).once()
        await eventually(lambda: shop.count("test:paid", "succeeded", 250 + len(during)))
    async with world.database.reading() as session:
        rows = (await session.execute(select(OutboxRow).where(OutboxRow.type == "shop.requested"))).scalars()  # type: ignore[arg-type]  # a column
        found = {row.cause: row.plan for row in rows}
    assert found == dict.fromkeys(old, "seed") | dict.fromkeys(during)


AT = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def event(at: datetime | None) -> Event:
    return Event(
        application="default", id="evt_1", type="order.paid", key="order:A", trust=Trust.READ, source=Source.BACKFILL,
        raw=b"{}", received_at=AT, occurred_at=at,
    )  # fmt: skip


@pytest.mark.parametrize("is_first", [True, False])
def test_history_is_what_happened_before_the_cut_over(is_first: bool) -> None:
    # case: B30
    cut = CutOver(at=AT, is_first=is_first)
    assert cut.is_history(event(AT - timedelta(microseconds=1)))
    assert not cut.is_history(event(AT))
    assert cut.is_history(event(None)) is is_first, "without a time only where nothing has run yet"


def test_a_named_moment_needs_one_event_with_a_time_and_another_needs_none() -> None:
    # case: B30
    named = CutOver(at=AT, is_first=True, is_said=True)
    with pytest.raises(UsageError):
        named.require_times((event(None), event(None)))
    named.require_times((event(None), event(AT)))
    named.require_times(())
    CutOver(at=AT, is_first=True).require_times((event(None),))


async def test_the_first_walk_began_once_and_a_seed_ends_where_the_loop_begins_to_act(world: World) -> None:
    # case: B30
    first = FirstWalk(world.app, HOUR)
    assert (await first.began(), await first.floor()) == (None, None)
    assert await first.cut_over(None, AT) == CutOver(at=AT, is_first=True)
    assert await first.cut_over(AT, AT) == CutOver(at=AT, is_first=True, is_said=True)
    with pytest.raises(UsageError):
        await first.cut_over(AT + timedelta(microseconds=1), AT)
    await first.begin(AT)
    await first.begin(AT + HOUR)
    for one in (first, FirstWalk(world.app, HOUR)):
        assert (await one.began(), await one.floor()) == (AT, AT - HOUR)
        assert await one.cut_over(None, AT + HOUR) == CutOver(at=AT - HOUR, is_first=False)
        said = await one.cut_over(AT - 9 * HOUR, AT)
        assert said == CutOver(at=AT - 9 * HOUR, is_first=False, is_said=True)


async def test_the_most_that_was_left_alone_is_told_until_somebody_has_seen_to_it(world: World) -> None:
    # case: B30
    async def left(events: int) -> int:
        async with world.database.transaction() as session:
            return await cutover.note_left(session, "default", events, token=1, now=AT)

    assert await left(0) == 0
    assert await world.kept(sync_state.LEFT) is None, "nothing is nothing to keep"
    assert [await left(events) for events in (3, 2, 3, 4, 0)] == [3, 3, 3, 4, 4]
    async with world.database.transaction() as session:
        await cutover.SeenTo(at=AT).keep(session, "default", now=AT)
        assert await cutover.left_alone(session, "default") == 0
    assert await left(0) == 0


@pytest.mark.parametrize(
    ("options", "began"),
    [
        (BackfillOptions(seed=True), HOUR),
        (BackfillOptions(seed=True, dry_run=True), None),
        (BackfillOptions(full=True), None),
        (BackfillOptions(dry_run=True), None),
        (BackfillOptions(), timedelta(0)),
    ],
    ids=["seed", "foretold", "full", "dry run", "walk"],
)
async def test_a_seed_begins_the_first_walk_so_that_the_loop_acts_on_all_it_left(
    world: World, service_side: Simulated, options: BackfillOptions, began: timedelta | None
) -> None:
    # case: B30, B31
    service_side.emit(1)
    pass_time(world, service_side, seconds=1)
    now = world.clock.now()
    await backfill(world).once(options)
    assert await FirstWalk(world.app).began() == (None if began is None else now + began)


@pytest.mark.parametrize(
    ("options", "floor", "since"),
    [
        (BackfillOptions(), AT - HOUR, AT - HOUR),
        (BackfillOptions(dry_run=True), AT - HOUR, AT - HOUR),
        (BackfillOptions(since=AT - 9 * HOUR), AT - 9 * HOUR, AT - 9 * HOUR),
        (BackfillOptions(full=True), None, None),
        (BackfillOptions(seed=True), None, None),
    ],
    ids=["walk", "dry run", "since", "full", "seed"],
)
async def test_before_the_first_walk_and_after_it_a_walk_acts_on_what_it_is_asked_for(
    world: World, service_side: Simulated, options: BackfillOptions, floor: datetime | None, since: datetime | None
) -> None:
    # case: B30
    assert world.clock.now() == AT
    stage, lister = backfill(world), world.api.client.events
    begun = await stage.start.begin(options, lister, sweeps=False)
    assert (begun.floor, begun.walk.since, begun.walk.sweeps, begun.walk.now) == (floor, since, False, AT)
    assert begun.report.cut_over == (AT if options.seed else None)
    service_side.emit(1)
    await backfill(world).once()
    pass_time(world, service_side, hours=5)
    if options.seed:
        with pytest.raises(UsageError):
            await stage.start.begin(options, lister, sweeps=True)
        return
    later = await stage.start.begin(options, lister, sweeps=True)
    assert (later.floor, later.walk.sweeps) == (floor, True)
    assert later.walk.since == (None if options.reads_bookmark else since), "what was walked ends a walk by itself"
    assert (later.walk.bookmark.walked_at is None) is not options.reads_bookmark


async def test_a_look_ends_at_what_is_known_and_acts_as_the_loop_does(world: World) -> None:
    # case: B30, C15
    stage = backfill(world)
    begun = await stage.start.begin_look(world.api.client.events, ["evt_1"])
    assert (begun.floor, begun.walk.since, begun.walk.sweeps) == (AT - HOUR, None, False)
    assert begun.walk.bookmark == Bookmark(
        order=ListOrder.NEWEST_FIRST, head_ids=("evt_1",), walked_at=AT, swept_at=AT
    )  # fmt: skip
    assert not begun.options.follows_bookmark
