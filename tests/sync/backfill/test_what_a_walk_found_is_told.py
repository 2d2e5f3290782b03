"""What a walk found is told exactly: in its report, in figures and in the log, each thing only when it is so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import structlog

from consumer.clock import DrivenClock
from consumer.ledger.reading import hints, quarantine
from consumer.lists.bookmark import ListOrder
from consumer.lists.progress import Progress
from consumer.payments import PaymentsError
from consumer.reason import Reason
from consumer.sync.backfill import catch_up
from consumer.sync.backfill.catch_up import LOOK_READS_MAX, CatchUp, Coverage
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.backfill.report import BackfillOptions, BackfillReport, Telling
from consumer.sync.backfill.silence import DeliveryHealth, note_reconciled
from consumer.sync.backfill.stage import Backfill
from consumer.telemetry.metrics import Metrics
from tests.sync.backfilling import backfill
from tests.sync.conftest import World, counted_by, delivery

SINCE = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


@dataclass
class Listed:
    """The list of events as a test has it, newest first; so many a page. `took_s`: how long an answer takes."""

    world: World
    size: int = 100
    took_s: float = 0.0
    items: list[dict[str, Any]] = field(default_factory=list)
    asked_at_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world.service.lists["/v1/events"] = self.page

    def add(self, number: int, *, ago_s: float | None = 0.0, order_id: str = "A-1") -> str:
        """An event so long ago, or one without a time."""
        event = self.world.service.event(number, order_id=order_id)
        if ago_s is not None:
            event["created_at"] = (self.world.clock.now() - timedelta(seconds=ago_s)).isoformat()
        self.items.insert(0, event)
        return str(event["id"])

    def page(self, cursor: str | None, limit: int) -> dict[str, Any]:
        assert limit == 100
        self.asked_at_s.append(self.world.clock.monotonic())
        self.world.clock.advance(self.took_s)
        start = int(cursor or 0)
        following = str(start + self.size) if start + self.size < len(self.items) else None
        return {"items": self.items[start : start + self.size], "next_cursor": following}


def figure(world: World, name: str, **labels: str) -> float | None:
    return world.metrics.registry.get_sample_value(name, labels)


NOTHING = BackfillReport(application="default", listed=7, known=7)


@pytest.mark.parametrize(
    ("report", "left_alone", "told"),
    [
        (NOTHING, 0, []),
        (
            BackfillReport(application="default", strange=2),
            0,
            [
                {
                    "event": "listed_events_not_understood",
                    "log_level": "error",
                    "code": "listed_events_not_understood",
                    "events": 2,
                    "for_s": 0.0,
                    "times": 1,
                }
            ],
        ),
        (
            NOTHING,
            3,
            [
                {
                    "event": "history_left_alone",
                    "log_level": "error",
                    "code": "history_left_alone",
                    "at_least": 3,
                    "for_s": 0.0,
                    "times": 1,
                    "hint": "`backfill --seed --full --reason …` archives, `--full` acts",
                }
            ],
        ),
        (
            BackfillReport(application="default", without_time=4),
            0,
            [{"event": "seed_took_events_without_time", "log_level": "warning", "events": 4}],
        ),
        (
            BackfillReport(application="default", gap=True),
            0,
            [
                {
                    "event": "retention_gap",
                    "log_level": "error",
                    "hint": "events may have come and gone unseen; reconcile heals what it can",
                }
            ],
        ),
        (
            BackfillReport(application="default", published=5, listed=9, dry_run=True),
            0,
            [
                {
                    "event": "backfill_found_events",
                    "log_level": "info",
                    "events": 5,
                    "listed": 9,
                    "dry_run": True,
                }
            ],
        ),
    ],
    ids=["nothing", "strange", "history", "without time", "gap", "found"],
)
def test_each_thing_has_its_line_and_a_walk_that_found_nothing_has_none(
    report: BackfillReport, left_alone: int, told: list[dict[str, Any]]
) -> None:
    # case: B13, B30, U1
    metrics = Metrics()
    with structlog.testing.capture_logs() as logs:
        Telling("default", DrivenClock(), metrics).say(report, left_alone)
    assert logs == [{"application": "default", **one} for one in told]
    assert counted_by(metrics, "walked", "default", "strange") == report.strange
    assert counted_by(metrics, "retention_gaps", "default") == int(report.gap)


def test_what_is_not_understood_walk_after_walk_is_said_at_growing_intervals_and_its_end() -> None:
    # case: U1, O1
    clock = DrivenClock()
    telling = Telling("default", clock, Metrics())
    with structlog.testing.capture_logs() as logs:
        for walk in range(20):  # each other one
            telling.say(replace(NOTHING, strange=walk % 2), None)
            clock.advance(60)
        for _ in range(10):
            telling.say(NOTHING, None)
            clock.advance(60)
    word = "listed_events_not_understood"
    assert [(one["event"], one["times"]) for one in logs] == [
        (word, 1), (word, 2), (word, 3), (word, 5), (word, 9), (f"{word}_over", 10)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "reads", "follows", "sees"),
    [
        (BackfillOptions(), True, True, False),
        (BackfillOptions(dry_run=True), True, False, False),
        (BackfillOptions(full=True), False, False, True),
        (BackfillOptions(full=True, dry_run=True), False, False, False),
        (BackfillOptions(full=True, since=SINCE), False, False, False),
        (BackfillOptions(full=True, seed=True), False, False, True),
        (BackfillOptions(full=True, seed=True, until=SINCE), False, False, False),
        (BackfillOptions(seed=True), False, False, False),
        (BackfillOptions(since=SINCE), False, False, False),
    ],
)
def test_what_is_asked_says_whether_the_bookmark_moves_and_history_is_seen_to(
    options: BackfillOptions, reads: bool, follows: bool, sees: bool
) -> None:
    # case: B10, B30, B31
    assert (options.reads_bookmark, options.follows_bookmark, options.sees_to_history) == (reads, follows, sees)


async def known_to(world: World, event_id: str) -> None:
    """The ledger has the listed event already."""
    assert (await backfill(world).once()).published == 1
    assert [event.id for event in await world.published()] == [event_id]
    await world.work()


async def announced(world: World, event_id: str) -> None:
    """A webhook of the event waits to be confirmed."""
    async with world.database.transaction() as session:
        await hints.keep(session, [delivery(b"{}", 5, event_id=event_id)], world.clock.now())


def counts(report: BackfillReport) -> dict[str, int]:
    names = ("pages", "listed", "known", "published", "recovered", "strange", "history", "left", "without_time")
    return {name: found for name in names if (found := getattr(report, name))}


async def test_every_listed_record_is_counted_as_what_it_is(world: World) -> None:
    # case: B30, U1, O1
    listed = Listed(world)
    await known_to(world, listed.add(1, ago_s=50))
    listed.items.append({"odd": True})
    await announced(world, listed.add(2, ago_s=40))
    listed.add(3, ago_s=30)
    listed.add(4, ago_s=20)
    listed.items.append({"odd": "too"})
    listed.add(5, ago_s=4000)
    listed.items.append(listed.items.pop(0))
    assert counted_by(world.metrics, "walked", "default", "recovered") == 1
    dry = await backfill(world).once(BackfillOptions(dry_run=True))
    found = {"pages": 1, "listed": 7, "known": 1, "published": 3, "recovered": 2, "strange": 2, "history": 1}
    assert counts(dry) == found
    report = await backfill(world).once()
    assert counts(report) == found
    assert report.order is ListOrder.NEWEST_FIRST
    assert counted_by(world.metrics, "walked", "default", "listed") == 1 + 7, "a dry run counts nothing there"
    assert counted_by(world.metrics, "walked", "default", "recovered") == 1 + 2
    assert counted_by(world.metrics, "confirmed", "default", "confirmed") == 1
    assert counted_by(world.metrics, "events_history", "default") == 1
    assert [event.id[-1] for event in await world.published()] == ["1", "2", "3", "4"], "of one order the oldest first"
    async with world.database.reading() as session:
        assert (await DeliveryHealth.of(session, "default")).pending == ("evt_000003", "evt_000004")


@pytest.mark.parametrize("options", [BackfillOptions(since=SINCE - timedelta(minutes=1)), BackfillOptions(seed=True)])
async def test_what_was_not_asked_for_is_not_called_history(world: World, options: BackfillOptions) -> None:
    # case: B30
    listed = Listed(world)
    listed.add(1, ago_s=50)
    await backfill(world).start.begin(BackfillOptions(), world.api.client.events, sweeps=True)
    listed.add(2, ago_s=40)
    listed.add(0, ago_s=4000)
    listed.items.append(listed.items.pop(0))
    report = await backfill(world).once(options)
    found = {"published": 1, "recovered": 1, "left": 2} if options.seed else {"published": 2, "recovered": 2}
    assert counts(report) == {"pages": 1, "listed": 3} | found


async def test_what_happened_at_the_floor_is_acted_on_and_what_happened_before_is_not(world: World) -> None:
    # case: B30
    listed = Listed(world)
    listed.add(1, ago_s=3601)
    at = listed.add(2, ago_s=3600)
    timeless = listed.add(3, ago_s=None)
    assert counts(await backfill(world).once()) == {
        "pages": 1, "listed": 3, "published": 2, "recovered": 2, "history": 1
    }  # fmt: skip
    assert {event.id for event in await world.published()} == {at, timeless}


async def test_events_without_an_order_are_published_as_they_are_listed(world: World) -> None:
    # case: U6
    listed = Listed(world)
    ids = [listed.add(number, ago_s=None) for number in (1, 2, 3)]
    await backfill(world).once()
    assert [event.id for event in await world.published()] == ids[::-1]


async def test_a_record_that_can_only_be_kept_is_kept_raw_under_a_name_of_its_own(world: World) -> None:
    # case: U1
    listed = Listed(world)
    listed.items = [{"odd": True}, {"odd": False}]
    await backfill(world).once()
    async with world.database.reading() as session:
        kept = await quarantine.newest(session)
    assert {row.reason for row in kept} == {"not_understood"}
    assert {(row.delivery_id[:7], len(row.delivery_id), row.event_id) for row in kept} == {("listed:", 47, None)}
    assert {row.received_at for row in kept} == {world.clock.now()}


async def test_what_no_topic_takes_is_tried_once_and_its_webhook_waits_no_more(world: World) -> None:
    # case: U1, G3
    listed = Listed(world)
    large = listed.add(1)
    listed.items[0]["data"]["note"] = "x" * (3 * 2**20)
    await announced(world, large)
    stage = backfill(world)
    assert counts(await stage.once()) == {"pages": 1, "listed": 1, "strange": 1}
    async with world.database.reading() as session:
        assert await hints.ids_of(session, "default", [large]) == []
        [kept] = await quarantine.newest(session)
    assert (kept.event_id, kept.reason) == (large, Reason.TOO_LARGE)
    assert counts(await stage.once()) == {"pages": 1, "listed": 1, "known": 1}, "it is not tried again on every walk"
    assert counted_by(world.metrics, "walked", "default", "strange") == 1


async def test_the_first_walk_of_all_calls_for_reconcile(world: World) -> None:
    """Up to a minute later, what was paid meanwhile and told by no event was taken for history, too."""
    # case: B30
    Listed(world).add(1)
    reconcile_due = asyncio.Event()
    stage = Backfill(world.app, world.settlement(), reconcile_due=reconcile_due)
    world.service.failing["/v1/events"] = 503
    with pytest.raises(PaymentsError):
        await stage.once()
    assert reconcile_due.is_set(), "though it is cut at once: from now on events are acted on"
    reconcile_due.clear()
    world.service.failing.clear()
    await stage.once()
    assert not reconcile_due.is_set()


async def test_a_gap_calls_for_reconcile_and_stands_until_that_is_done(world: World) -> None:
    # case: B13
    listed = Listed(world)
    listed.add(1)
    reconcile_due = asyncio.Event()
    stage = Backfill(world.app, world.settlement(), reconcile_due=reconcile_due)
    assert not (await stage.once()).gap
    reconcile_due.clear()
    assert not (await stage.once()).gap
    assert (reconcile_due.is_set(), counted_by(world.metrics, "gap_open", "default")) == (False, 0)
    world.clock.advance(7200)
    listed.items.clear()
    listed.add(9)
    assert (await stage.once()).gap
    assert (reconcile_due.is_set(), counted_by(world.metrics, "gap_open", "default")) == (True, 1)
    reconcile_due.clear()
    assert not (await stage.once()).gap
    assert (reconcile_due.is_set(), counted_by(world.metrics, "gap_open", "default")) == (False, 1)


async def test_history_that_is_left_alone_is_said_at_growing_intervals_and_its_end(world: World) -> None:
    # case: B30, O1
    listed = Listed(world)
    listed.add(1, ago_s=9000)
    stage = backfill(world)
    said = []
    with structlog.testing.capture_logs() as logs:
        for _ in range(10):
            await stage.once()
            said.append(len([one for one in logs if one["event"] == "history_left_alone"]))
            world.clock.advance(60)
        await stage.once(BackfillOptions(full=True, seed=True))
        await world.work()
        await stage.once()
    assert said == [1, 2, 2, 3, 3, 3, 3, 4, 4, 4]
    [over] = [one for one in logs if one["event"] == "history_left_alone_over"]
    assert (over["application"], over["times"]) == ("default", 10)


async def test_how_long_a_walk_took_and_how_long_ago_it_was_is_a_figure_and_a_dry_run_is_none(world: World) -> None:
    # case: B29, B31
    listed = Listed(world, size=1, took_s=2.5)
    listed.add(1, ago_s=2)
    listed.add(2, ago_s=1)
    stage = backfill(world)
    assert (await stage.once(BackfillOptions(dry_run=True))).seconds == 5.0
    assert figure(world, "consumer_sync_walk_seconds_count", walk="events") in (None, 0.0)
    assert figure(world, "consumer_sync_bookmark_age_seconds", application="default") is None
    assert (await stage.once()).seconds == 5.0
    assert figure(world, "consumer_sync_walk_seconds_sum", walk="events") == 5.0
    world.clock.advance(40)
    assert figure(world, "consumer_sync_bookmark_age_seconds", application="default") == 40.0


@pytest.mark.parametrize(("took_s", "began_s"), [(5.0, [0, 60, 120]), (75.0, [0, 75, 150])])
async def test_a_walk_begins_a_minute_after_the_last_began_or_at_once(
    world: World, took_s: float, began_s: Sequence[float]
) -> None:
    # case: B29
    listed = Listed(world)
    listed.add(1)
    listed.took_s = took_s
    stage = backfill(world)
    stop = asyncio.Event()
    page = listed.page

    def stopping(cursor: str | None, limit: int) -> dict[str, Any]:
        found = page(cursor, limit)
        if len(listed.asked_at_s) == 3:
            stop.set()
        return found

    world.service.lists["/v1/events"] = stopping
    async with asyncio.timeout(20):
        await stage.run(stop)
    assert listed.asked_at_s == list(began_s)


@pytest.mark.parametrize(("interval_s", "often_s"), [(60.0, 10.0), (4.0, 4.0)])
async def test_while_webhooks_are_silent_walks_are_never_rarer_than_before(
    world: World, interval_s: float, often_s: float
) -> None:
    # case: O1
    listed = Listed(world)
    policy = BackfillPolicy(interval_s=interval_s, silent_interval_s=10.0)
    stage = Backfill(world.app, world.settlement(), policy=policy)
    assert (stage.interval_s, stage.under_way) == (interval_s, None), "before the first walk"
    for number in range(3):
        listed.add(2 * number)
        listed.add(2 * number + 1)
        await stage.once()
        await world.work()
    assert stage.interval_s == often_s


@pytest.mark.parametrize(("pages_max", "complete"), [(1, False), (2, False), (3, False), (4, True), (None, True)])
async def test_a_walk_that_may_read_so_many_pages_is_left_there(
    world: World, pages_max: int | None, complete: bool
) -> None:
    # case: B10
    listed = Listed(world, size=1)
    for number in range(3):
        listed.add(number, ago_s=9 - number)
    stage = backfill(world)
    begun = await stage.start.begin(BackfillOptions(full=True), world.api.client.events, sweeps=True)
    seen: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        assert stage.under_way is begun.walk
        seen.append(progress)

    assert await stage.read(begun, on_progress, reads_max=pages_max) is complete
    assert [(one.pages, one.listed, one.published) for one in seen] == [(n, n, n) for n in (1, 2, 3)][:pages_max]
    assert stage.under_way is None


@pytest.mark.parametrize(
    ("order", "coverage", "calls"),
    [
        (ListOrder.NEWEST_FIRST, Coverage.NEWEST, 1),
        (ListOrder.OLDEST_FIRST, Coverage.NOTHING, 0),
        (ListOrder.UNKNOWN, Coverage.NOTHING, 0),
    ],
)
async def test_beside_a_walk_hints_hear_of_the_newest_where_these_stand_first_and_else_nothing_is_read(
    world: World, order: ListOrder, coverage: Coverage, calls: int
) -> None:
    # case: C15
    listed = Listed(world)
    listed.add(1, ago_s=2)
    listed.add(2, ago_s=1)
    stage = backfill(world)
    begun = await stage.start.begin(BackfillOptions(), world.api.client.events, sweeps=True)
    begun.walk.order = order
    stage.under_way = begun.walk
    async with stage.walking:
        assert await CatchUp(stage).walk() is coverage
    assert len(listed.asked_at_s) == calls
    assert len(await world.published()) == 2 * calls


async def test_a_look_beside_a_walk_ends_after_so_many_pages_and_the_next_one_ends_where_it_began(world: World) -> None:
    # case: C15
    listed = Listed(world, size=2)
    for number in range(2 * (LOOK_READS_MAX + 5)):
        listed.add(number, ago_s=600 - number)
    stage = backfill(world)
    catch_up = CatchUp(stage)
    async with stage.walking:
        assert await catch_up.walk() is Coverage.NEWEST
        assert len(listed.asked_at_s) == LOOK_READS_MAX
        assert await catch_up.walk() is Coverage.NEWEST
    assert len(listed.asked_at_s) == LOOK_READS_MAX + 1, "the first page has what the last look saw"


@pytest.mark.parametrize("is_for_hints", [False, True])
async def test_a_gap_is_kept_with_the_bookmark_that_is_past_it(
    world: World, monkeypatch: pytest.MonkeyPatch, is_for_hints: bool
) -> None:
    """A walk that was killed in between lost it, and so did one for hints that had made all its reads by then."""
    # case: B13, B10
    listed = Listed(world)
    listed.add(1)
    stage = backfill(world)
    await stage.once()
    world.clock.advance(7200)
    listed.items.clear()
    listed.add(9)
    if is_for_hints:
        monkeypatch.setattr(catch_up, "WALK_READS_MAX", 1)
        await CatchUp(stage).walk()
    else:
        monkeypatch.setattr(stage, "conclude", killed)
        with pytest.raises(asyncio.CancelledError):
            await stage.once()
    assert not (await backfill(world).once()).gap, "the bookmark is past it"
    async with world.database.reading() as session:
        assert (await DeliveryHealth.of(session, "default")).gap_at is not None


async def test_a_second_gap_outlives_the_walk_of_state_that_heals_the_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a walk that was cut, while that one was under way: the bookmark was past it, and nobody knew."""
    # case: B13, B10
    listed = Listed(world)
    listed.add(1)
    stage = backfill(world)
    await stage.once()
    monkeypatch.setattr(stage, "conclude", killed)
    for number in (9, 19):
        world.clock.advance(7200)
        listed.items.clear()
        listed.add(number)
        with pytest.raises(asyncio.CancelledError):
            await stage.once()
    async with world.database.transaction() as session:
        await note_reconciled(session, "default", began=world.clock.now() - timedelta(hours=1), token=1)
        assert (await DeliveryHealth.of(session, "default")).gap_at is not None


async def killed(*_: object, **__: object) -> None:
    raise asyncio.CancelledError
