"""Lateness: what becomes visible after newer events have been listed is found by a later walk, at a bounded price."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from consumer.lists.bookmark import Bookmark, ListOrder, PageRef, Resume
from consumer.lists.policy import WalkPolicy
from consumer.lists.recent_pages import RecentPages
from tests.lists.scripted_list import START, Follower, ScriptedList, feed_policy, growing

LATE_S = 16
LATE_ACTION = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 12)),
    st.tuples(st.just("late"), st.integers(1, LATE_S - 1)),
    st.tuples(st.just("walk"), st.just(0)),
    st.tuples(st.just("hurry"), st.integers(0, 6)),
    st.tuples(st.just("cut"), st.integers(1, 6)),
    st.tuples(st.just("grow"), st.integers(1, 3)),
    st.tuples(st.just("pause"), st.integers(1, 2 * LATE_S)),
)


def sweeping(service: ScriptedList, clock_ahead_s: float = 0.0) -> Follower:
    """Somebody who finds what is listed up to `LATE_S` seconds late, each time it walks and is in no hurry."""
    return Follower(service, policy=feed_policy(overlap_s=LATE_S), clock_ahead_s=clock_ahead_s)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    newest=st.booleans(),
    inclusive=st.booleans(),
    clock_ahead_s=st.sampled_from([0.0, -100.0, 100.0]),
    actions=st.lists(LATE_ACTION, max_size=25),
)
@example(False, False, 0.0, [("late", 1), ("walk", 0), ("late", 2), ("hurry", 1), ("walk", 0)])  # cut where times lie
async def test_what_becomes_visible_late_is_found_by_the_next_sweep(
    newest: bool, inclusive: bool, clock_ahead_s: float, actions: list[tuple[str, int]]
) -> None:
    # case: B6, B10, B34
    service = ScriptedList(newest_first=newest, inclusive=inclusive)
    follower = sweeping(service, clock_ahead_s)
    for action, number in [*actions, ("pause", LATE_S), ("walk", 0)]:
        match action:
            case "add":
                service.add(number)
            case "late":
                service.add_late(number + 0.5)
                service.add(number)
            case "pause":
                service.now += timedelta(seconds=number)
            case "cut":
                await follower.go(pages=number)
            case "hurry":
                await follower.go(pages=number or None, sweeps=False)
            case "grow":
                service.before_page = growing(service, number)
            case "walk":
                wanted = set(service.ids)
                await follower.go()
                service.before_page = lambda _: None
                assert wanted <= follower.seen, wanted - follower.seen
    assert not service.late


@pytest.mark.parametrize("newest", [True, False])
async def test_at_fifty_events_a_second_one_that_is_listed_a_minute_late_is_found(newest: bool) -> None:
    # case: B34
    service = ScriptedList(newest_first=newest, inclusive=not newest, every_s=0.02)
    follower = Follower(service, policy=WalkPolicy())
    service.add(3000)
    await follower.go()
    service.add(2500)
    service.add_late(59)
    service.add(500)
    await follower.go()
    for _ in range(6):  # walks in a hurry, as hints ask for, move the bookmark on beyond it
        service.add(500)
        before = service.calls
        await follower.go(sweeps=False)
        assert service.calls - before <= 9, "who is in a hurry reads no more than what is new, and a page"
    assert follower.seen < service.ids
    before = service.calls
    await follower.go()
    assert follower.seen == service.ids
    assert service.calls - before <= 65, "two minutes' events, once a minute: a fifth of the budget"
    before = service.calls
    await follower.go()
    assert service.calls - before <= 4, "no sweep is due"


@pytest.mark.parametrize(("times", "pages"), [("shown", 1), ("hidden", 2)])
async def test_who_is_in_a_hurry_reads_a_page_again_only_where_no_sweep_would(times: str, pages: int) -> None:
    # case: B34, C15
    service = ScriptedList(newest_first=True, inclusive=False, times=times)
    follower = Follower(service, policy=WalkPolicy(limit=10))
    service.add(50)
    await follower.go()
    for _ in range(3):
        service.add(4)
        before = service.calls
        await follower.go(sweeps=False)
        assert service.calls - before == pages
    assert follower.seen == service.ids


@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize("ahead", [timedelta(minutes=1), timedelta(days=365)], ids=["minute", "year"])
async def test_one_event_that_is_dated_ahead_hides_none_that_is_listed_late(newest: bool, ahead: timedelta) -> None:
    # case: B34, U22
    service = ScriptedList(newest_first=newest)
    follower = sweeping(service)
    service.add(30)
    service.events.append((10_000, service.now + ahead))
    await follower.go()
    service.add_late(LATE_S - 1.5)
    service.add(10)
    await follower.go()
    service.now += timedelta(seconds=LATE_S - 11)
    service.add(1)
    await follower.go()
    assert not service.late
    assert follower.seen == service.ids


@pytest.mark.parametrize("newest", [True, False])
async def test_a_sweep_is_bounded_and_costs_two_pages_once_nothing_can_be_late(newest: bool) -> None:
    # case: B34
    service = ScriptedList(newest_first=newest, every_s=0.0001)
    follower = Follower(service, policy=WalkPolicy(limit=10, overlap_pages_max=20))
    service.add(2000)
    await follower.go()
    for seconds, calls in ((45, 24), (60, 24), (60, 3), (60, 3)):
        service.now += timedelta(seconds=seconds)
        before = service.calls
        await follower.go()
        assert service.calls - before <= calls, seconds


@pytest.mark.parametrize("newest", [True, False])
async def test_a_mark_from_before_there_were_sweeps_is_gone_on_from_and_the_next_walk_is_one(newest: bool) -> None:
    # case: B10, B34
    service = ScriptedList(newest_first=newest)
    follower = sweeping(service)
    service.add(100)
    service.add_late(LATE_S)
    service.add(3)
    await follower.go()
    stored = follower.bookmark.dump()
    for name in ("swept_at", "swept_to", "anchor"):
        del stored[name]
    follower.bookmark = Bookmark.load(stored)
    assert follower.bookmark.walked_at is not None
    service.add(LATE_S)
    before = service.calls
    walk = await follower.go()
    assert walk.met
    assert service.calls - before < 15
    assert follower.bookmark.swept_at == follower.began
    service.add_late(LATE_S)
    service.add(9)
    await follower.go()
    service.add(LATE_S)
    await follower.go()
    assert follower.seen == service.ids


async def test_where_a_walk_of_the_newest_was_cut_leads_no_walk_of_a_list_that_is_oldest_first() -> None:
    # case: B12, B34
    service = ScriptedList(newest_first=False)
    service.add(30)
    service.now += timedelta(hours=1)
    left = Resume(head_ids=("evt_0",), cursor="evt_29", begun_to=START)
    follower = Follower(service, bookmark=Bookmark(resume=left))
    await follower.go(pages=3)
    assert follower.bookmark.resume is not None
    assert follower.bookmark.resume.cursor == "evt_8", "it goes on where it was cut itself"
    await follower.go()
    assert follower.seen == service.ids


def test_young_pages_that_are_forgotten_are_known_to_have_been_there() -> None:
    # case: B34
    young, old = START, START - timedelta(days=1)
    recent = RecentPages(pages=1, pages_max=2)
    for number, newest_at in enumerate([young, old, old, old]):
        assert not recent.has_forgotten(old)
        recent.add(PageRef(cursor=f"c{number}", ids=(), newest_at=newest_at))
    assert recent.before(old) is None
    assert recent.has_forgotten(old)
    assert not recent.has_forgotten(young)
    recent.clear()
    assert not recent.has_forgotten(old)


def names(*numbers: int) -> tuple[str, ...]:
    return tuple(f"evt_{number}" for number in numbers)


def second(number: float) -> datetime:
    return START + timedelta(seconds=number)


TIMED = Bookmark(newest_at=second(10), swept_to=second(10), swept_at=second(10.001), walked_at=second(10.001))
LATER = Bookmark(newest_at=second(12.001), swept_to=second(12.001), swept_at=second(12.002), walked_at=second(12.002))
UNTIMED, UNTIMED_LATER = Bookmark(walked_at=second(10.001)), Bookmark(walked_at=second(12.002))


@pytest.mark.parametrize(
    ("newest", "times", "first", "then", "calls"),
    [
        (
            True,
            "shown",
            replace(
                TIMED,
                order=ListOrder.NEWEST_FIRST,
                head_ids=names(9, 8, 7),
                tail_ids=names(3, 2, 1, 0),
                tail_cursors=names(4, 1),
            ),
            replace(
                LATER,
                order=ListOrder.NEWEST_FIRST,
                head_ids=names(11, 10, 9),
                tail_ids=names(3, 2, 1, 0),
                tail_cursors=names(4, 1),
            ),
            3,
        ),
        (
            False,
            "shown",
            replace(
                TIMED,
                order=ListOrder.OLDEST_FIRST,
                head_ids=names(0, 1, 2),
                tail_ids=names(6, 7, 8, 9),
                tail_cursors=names(5, 8),
                sweep_from=PageRef(cursor="evt_2", ids=names(3, 4, 5), newest_at=second(6)),
            ),
            replace(
                LATER,
                order=ListOrder.OLDEST_FIRST,
                head_ids=names(0, 1, 2),
                tail_ids=names(6, 7, 8, 9, 10, 11),
                tail_cursors=names(5, 8),
                sweep_from=PageRef(cursor="evt_5", ids=names(6, 7, 8), newest_at=second(9)),
            ),
            4,
        ),
        (
            False,
            "hidden",
            replace(
                UNTIMED,
                head_ids=names(0, 1, 2),
                tail_ids=names(6, 7, 8, 9),
                tail_cursors=names(5, 8),
            ),
            replace(
                UNTIMED_LATER,
                head_ids=names(0, 1, 2),
                tail_ids=names(6, 7, 8, 9, 10, 11),
                tail_cursors=names(5, 8),
            ),
            4,
        ),
        (
            True,
            "hidden",
            replace(
                UNTIMED,
                head_ids=names(9, 8, 7),
                tail_ids=names(3, 2, 1, 0),
                tail_cursors=names(4, 1),
            ),
            replace(
                UNTIMED_LATER,
                order=ListOrder.NEWEST_FIRST,
                head_ids=names(11, 10, 9),
                tail_ids=names(3, 2, 1, 0),
                tail_cursors=names(4, 1),
            ),
            2,
        ),
    ],
    ids=["newest first", "oldest first", "oldest first, untimed", "newest first, untimed"],
)
async def test_a_walk_leaves_both_ends_and_where_the_next_one_and_the_next_sweep_begin(
    newest: bool, times: str, first: Bookmark, then: Bookmark, calls: int
) -> None:
    # case: B5, B10, B34, U6
    service = ScriptedList(newest_first=newest, times=times)
    follower = Follower(service)
    service.add(10)
    walk = await follower.go()
    assert follower.bookmark == first
    assert (walk.met, walk.begins_at) == (False, second(1) if newest and times == "shown" else None)
    service.add(2)
    walk = await follower.go()
    assert follower.bookmark == then
    assert (walk.met, walk.begins_at) == (True, None)
    assert service.calls == 4 + calls


async def test_a_quick_walk_and_one_that_is_no_sweep_leave_the_last_sweep_as_it_was() -> None:
    # case: B34
    for newest in (True, False):
        service = ScriptedList(newest_first=newest)
        follower = Follower(service, policy=replace(feed_policy(overlap_s=3.0), overlap_every_s=45.0))
        service.add(10)
        await follower.go()
        left = follower.bookmark
        service.add(40)
        await follower.go()
        found = follower.bookmark
        assert (found.swept_at, found.swept_to, found.sweep_from) == (left.swept_at, left.swept_to, left.sweep_from)
        assert (found.walked_at, found.newest_at) == (follower.began, second(50.001))


@pytest.mark.parametrize(
    ("overlap_s", "pages_max", "shared", "calls"),
    [
        (3.0, 1000, False, 9),
        (3.001, 1000, False, 10),
        (1000.0, 1, False, 9),
        (1000.0, 2, False, 10),
        (3.0, 1000, True, 12),
    ],
    ids=["old enough", "not old enough", "pages enough", "not pages enough", "no time tells where it is"],
)
async def test_a_walk_goes_on_where_one_was_cut_once_nothing_of_that_can_be_late(
    overlap_s: float, pages_max: int, shared: bool, calls: int
) -> None:
    # case: B10, B34
    service = ScriptedList()
    service.add(30)
    if shared:
        service.events = [(number, second(25) if 15 <= number <= 24 else at) for number, at in service.events]
    policy = replace(feed_policy(overlap_s=overlap_s), overlap_pages_max=pages_max)
    follower = Follower(service, policy=policy)
    await follower.go(pages=4)
    assert follower.bookmark.resume == Resume(head_ids=names(29, 28, 27), cursor="evt_18", begun_to=second(30))
    service.add(3)
    before = service.calls
    await follower.go()
    assert follower.seen == service.ids
    assert service.calls - before == calls


async def test_a_walk_that_goes_on_elsewhere_forgets_the_pages_before_as_its_last() -> None:
    # case: B10
    service = ScriptedList()
    service.add(30)
    follower = Follower(service)
    await follower.go(pages=9)
    service.add(3)
    walk = await follower.go()
    assert follower.seen == service.ids
    assert (follower.bookmark.tail_cursors, follower.bookmark.tail_ids) == (("evt_3",), names(2, 1, 0))
    assert (walk.refused, walk.begins_at) == (0, second(1))


async def test_where_one_was_cut_may_be_refused_and_the_walk_goes_on_by_itself_and_says_so() -> None:
    # case: B10, B11
    service = ScriptedList()
    service.add(30)
    follower = Follower(service)
    await follower.go(pages=4)
    service.events = [(number, at) for number, at in service.events if number != 18]
    service.add(3)
    walk = await follower.go()
    assert follower.seen >= service.ids
    assert (walk.refused, follower.bookmark.resume) == (1, None)


async def test_where_sweeps_begin_oldest_first_is_kept_while_a_list_is_turned_around() -> None:
    # case: B5, B34
    service = ScriptedList()
    service.add(10)
    begin = PageRef(cursor="evt_5", ids=names(6, 7, 8), newest_at=second(9))
    follower = Follower(service, bookmark=Bookmark(sweep_from=begin))
    for _ in range(2):
        await follower.go()
        assert follower.bookmark.sweep_from == begin


async def test_who_reads_all_there_is_has_swept_though_no_sweep_was_due() -> None:
    # case: B34
    service = ScriptedList()
    service.add(10)
    policy = replace(feed_policy(overlap_s=3.0), overlap_every_s=45.0)
    follower = Follower(service, policy=policy, bookmark=Bookmark(swept_at=second(9), swept_to=second(8)))
    await follower.go()
    assert (follower.bookmark.swept_at, follower.bookmark.swept_to) == (follower.began, second(10))
