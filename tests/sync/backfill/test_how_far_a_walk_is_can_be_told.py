"""Progress, prediction and time left: for every kind of walk, near the truth, and no number where nothing is known."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from consumer.checks.certificate import Certifier
from consumer.cli.walking.progress import PREDICT_PAGES, remaining_s
from consumer.events import Locators
from consumer.ledger.tables import BookmarkRow
from consumer.lists.bookmark import Bookmark, ListOrder
from consumer.lists.orders import WalkPage
from consumer.lists.policy import WalkPolicy
from consumer.lists.progress import ListStart, Progress, WalkProgress
from consumer.lists.walk import Walk
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.report import BackfillOptions
from tests.lists.scripted_list import START, Follower, ScriptedList
from tests.sync.backfilling import backfill
from tests.sync.conftest import Simulated, SteppedClock, World, pass_time, simulated

FULL = BackfillOptions(full=True)


@pytest.fixture
def world(world: World, service_side: Simulated) -> World:
    world.api = service_side.api
    return world


class Seen:
    """What a walk told on the way, and how near its first prediction was."""

    def __init__(self, world: World, page_s: float) -> None:
        self._clock = world.clock
        self._page_s = page_s
        self.shares: list[float | None] = []
        self.began_s = world.clock.monotonic()
        self.predicted_s: float | None = None

    def __call__(self, progress: Progress) -> None:
        self.shares.append(progress.share)
        if self.predicted_s is None and (left_s := remaining_s(progress, self._page_s)) is not None:
            self.predicted_s = self._clock.monotonic() - self.began_s + left_s

    def is_near(self) -> bool:
        """Within a half of the time that the walk took in the end."""
        known = [one for one in self.shares if one is not None]
        assert known == sorted(known)
        assert known[-1] > 0.95
        assert known[0] < 0.2
        took_s = self._clock.monotonic() - self.began_s
        return self.predicted_s is not None and abs(self.predicted_s - took_s) < took_s / 2


async def watching(world: World) -> Seen:
    return Seen(world, await world.api.predict_s(PREDICT_PAGES) / PREDICT_PAGES)


@pytest.mark.parametrize("order", ["newest_first", "oldest_first"])
@pytest.mark.parametrize("options", [FULL, BackfillOptions(full=True, dry_run=True)], ids=["full", "full dry run"])
async def test_the_whole_list_once_its_beginning_is_known(
    world: World, clock: SteppedClock, order: str, options: BackfillOptions
) -> None:
    # case: B29
    async with simulated(clock, events_order=order) as service_side:
        world.api = service_side.api
        service_side.emit(10)
        pass_time(world, service_side, seconds=5)
        await backfill(world).once()
        service_side.emit(2000)
        pass_time(world, service_side, seconds=60)
        seen = await watching(world)
        assert (await backfill(world).once(options, seen)).listed == 2010
        assert len(seen.shares) == 21
        assert seen.is_near(), (seen.predicted_s, seen.shares)


async def test_a_list_whose_beginning_nobody_has_seen_is_predicted_from_the_second_time_on(
    world: World, service_side: Simulated
) -> None:
    # case: B29, B30
    service_side.emit(2000)
    pass_time(world, service_side, hours=5)
    await backfill(world).once()
    first = await watching(world)
    await backfill(world).once(BackfillOptions(full=True), first)
    assert set(first.shares) == {None}
    assert first.predicted_s is None, "the walk before left history alone, and nobody knows how much"
    second = await watching(world)
    await backfill(world).once(FULL, second)
    assert second.is_near(), (second.predicted_s, second.shares)


@pytest.mark.parametrize("dry_run", [False, True])
async def test_time_without_events_is_no_progress(world: World, service_side: Simulated, dry_run: bool) -> None:
    # case: B29
    service_side.emit(100)
    pass_time(world, service_side, seconds=1)
    await backfill(world).once()
    await world.work()
    service_side.emit(3000)
    pass_time(world, service_side, hours=5)
    seen = await watching(world)
    report = await backfill(world, token=2).once(BackfillOptions(dry_run=dry_run), seen)
    assert report.published == 3000
    assert seen.is_near(), (seen.predicted_s, seen.shares)


async def test_a_list_that_goes_back_further_than_it_did_is_not_called_nearly_done(
    world: World, service_side: Simulated
) -> None:
    # case: B29
    service_side.emit(1000)
    await backfill(world).once(FULL)
    later = service_side.sandbox.clock.now() - timedelta(seconds=500)
    await ListStart(world.database, "default").keep(later, world.clock.now())
    seen = await watching(world)
    await backfill(world).once(BackfillOptions(full=True, dry_run=True), seen)
    assert seen.shares[0] is not None
    assert seen.shares[-1] is None


async def test_what_is_read_again_for_late_events_is_part_of_the_way(clock: SteppedClock) -> None:
    # case: B29, B34
    service = ScriptedList(every_s=0.02)
    follower = Follower(service, policy=WalkPolicy())
    service.add(6000)
    await follower.go()
    service.add(3000)
    service.now += timedelta(milliseconds=1)
    follower.began = service.now
    walk = follower.walk()
    walk_progress = WalkProgress(walk, clock, begins_at=None)
    shares = [walk_progress.progress(page, listed=0).share async for page in walk.pages()]
    assert len(shares) > 55, "half of them are the overlap"
    assert shares[29] is not None
    assert 0.4 < shares[29] < 0.6
    assert shares[-1] == 1.0


@pytest.mark.parametrize("order", ["newest_first", "oldest_first"])
async def test_a_certificate_tells_how_far_it_is(world: World, clock: SteppedClock, order: str) -> None:
    # case: B29, O7
    async with simulated(clock, events_order=order) as service_side:
        world.api = service_side.api
        began = service_side.sandbox.clock.now()
        service_side.emit(2500)
        pass_time(world, service_side, seconds=60)
        seen = await watching(world)
        until = world.clock.now()
        document = await Certifier(world.api, world.database, clock=clock).certify(began, until, seen)
        assert document["listed"] == 2500
        assert seen.is_near(), (seen.predicted_s, seen.shares)


async def test_a_list_without_times_is_walked_without_a_number(world: World, api: ApplicationApi) -> None:
    # case: B29
    world.api = api
    listed = [world.service.event(number) for number in range(250)]
    seen: list[Progress] = []

    def page(cursor: str | None, limit: int) -> dict[str, object]:
        start = int(cursor or 0)
        return {"items": listed[start : start + limit], "next_cursor": str(start + limit) if start < 200 else None}

    world.service.lists["/v1/events"] = page
    await backfill(world).once(FULL, seen.append)
    assert [(one.pages, one.share, one.eta_s) for one in seen] == [(n, None, None) for n in (1, 2, 3)]


NOW = START + timedelta(seconds=100)


def at(second: int | None) -> datetime | None:
    """So many seconds after the start of the list; it is walked at second 100."""
    return None if second is None else START + timedelta(seconds=second)


def page_of(*seconds: int) -> WalkPage:
    return WalkPage(items=(), bookmark=Bookmark(), times=tuple(START + timedelta(seconds=one) for one in seconds))


def walk_of(order: ListOrder, *, since: datetime | None = None) -> Walk:
    walk = Walk(lister=ScriptedList(), locators=Locators(), bookmark=Bookmark(), now=NOW, since=since)
    walk.order = order
    return walk


@pytest.mark.parametrize(
    ("order", "since", "begins_at", "first", "second", "share"),
    [
        (ListOrder.NEWEST_FIRST, 0, None, (90, 80), (40, 30), 60 / 90),
        (ListOrder.NEWEST_FIRST, 0, 40, (90, 80), (75, 70), 20 / 50),  # the list begins later than it has to reach
        (ListOrder.NEWEST_FIRST, 40, 0, (90, 80), (75, 70), 20 / 50),
        (ListOrder.NEWEST_FIRST, None, 40, (90, 80), (50, 40), 1.0),
        (ListOrder.NEWEST_FIRST, None, 40, (90, 80), (50, 39), None),  # it goes on beyond where it began
        (ListOrder.NEWEST_FIRST, 40, None, (90, 80), (50, 30), 1.0),
        (ListOrder.NEWEST_FIRST, None, None, (90, 80), (50, 30), None),
        (ListOrder.NEWEST_FIRST, 0, None, (80, 90), (30, 40), 60 / 90),  # times of one page in any order
        (ListOrder.NEWEST_FIRST, 90, None, (90, 80), (50, 30), None),  # no way at all
        (ListOrder.NEWEST_FIRST, 89, None, (90,), (90, 89), 1.0),
        (ListOrder.NEWEST_FIRST, 0, None, (), (50, 30), 20 / 50),
        (ListOrder.NEWEST_FIRST, 0, None, (90, 80), (), None),
        (ListOrder.OLDEST_FIRST, None, None, (20, 30), (50, 60), 40 / 80),
        (ListOrder.OLDEST_FIRST, None, None, (20, 30), (110, 120), 1.0),
        (ListOrder.OLDEST_FIRST, None, None, (20, 30), (5, 10), 0.0),
        (ListOrder.OLDEST_FIRST, None, None, (100, 110), (120, 130), None),
        (ListOrder.UNKNOWN, 0, None, (90, 80), (40, 30), None),
    ],
)
def test_the_share_is_of_the_way_from_the_first_page_to_where_the_walk_ends(
    clock: SteppedClock,
    order: ListOrder,
    since: int | None,
    begins_at: int | None,
    first: tuple[int, ...],
    second: tuple[int, ...],
    share: float | None,
) -> None:
    # case: B29
    told = WalkProgress(walk_of(order, since=at(since)), clock, begins_at=at(begins_at))
    told.progress(page_of(*first), listed=0)
    assert told.progress(page_of(*second), listed=0).share == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(("reached", "eta_s"), [(100, None), (99, None), (98, 490.0), (75, 30.0), (20, 2.5), (0, 0.0)])
def test_the_rest_takes_as_long_for_its_share_as_what_was_walked_and_no_number_is_given_at_first(
    clock: SteppedClock, reached: int, eta_s: float | None
) -> None:
    # case: B29
    clock.advance(5.0)
    told = WalkProgress(walk_of(ListOrder.NEWEST_FIRST, since=START), clock, begins_at=None)
    clock.advance(10.0)
    found = told.progress(page_of(100, reached), listed=3, published=2)
    assert (found.pages, found.listed, found.published) == (0, 3, 2)
    assert found.eta_s == (None if eta_s is None else pytest.approx(eta_s))


@pytest.mark.parametrize(
    ("newest", "swept_to", "sweeping", "since", "goal"),
    [
        (80, 70, True, None, 10),
        (80, 70, False, None, 80),
        (5, 70, True, None, 5),
        (80, None, True, None, 20),  # before there were sweeps: from the last walk, or the newest it saw
        (80, 70, True, 33, 33),
        (None, 70, True, None, None),
        (None, None, False, 33, 33),
    ],
)
def test_a_walk_of_the_newest_ends_with_the_last_one_and_a_sweep_a_minute_before_the_last_sweep(
    newest: int | None, swept_to: int | None, sweeping: bool, since: int | None, goal: int | None
) -> None:
    # case: B29, B34
    kept = Bookmark(newest_at=at(newest), swept_to=at(swept_to), walked_at=at(90))
    walk = Walk(lister=ScriptedList(), locators=Locators(), bookmark=kept, now=NOW, since=at(since))
    walk.sweeping = sweeping
    assert walk.goal_at == at(goal)


async def test_where_the_list_begins_is_written_when_it_is_known_and_news(world: World) -> None:
    # case: B29
    start = ListStart(world.database, "default")

    async def written() -> list[datetime]:
        async with world.database.reading() as session:
            return [row.updated_at for row in await session.scalars(select(BookmarkRow))]

    await start.keep(None, NOW)
    assert (await start.at(), await written()) == (None, [])
    await start.keep(START, NOW)
    await start.keep(START, NOW + timedelta(hours=1))
    assert (await start.at(), await written()) == (START, [NOW])
    await start.keep(NOW, NOW + timedelta(hours=2))
    assert (await start.at(), await written()) == (NOW, [NOW + timedelta(hours=2)])
