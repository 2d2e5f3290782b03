"""Pager, RecentPages, Walk: what pages tell of times, order, cursors and their end, and where the next walk begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from consumer.events import Locators
from consumer.lists.bookmark import AHEAD_MAX, IDS_MAX, Bookmark, ListOrder, PageRef, Resume
from consumer.lists.pager import PAGES_MAX, CursorRefused, Pager, ids_of, meets
from consumer.lists.policy import WalkPolicy
from consumer.lists.recent_pages import RecentPages
from consumer.lists.walk import Walk
from consumer.payments import (
    ApiError,
    Cursor,
    CursorLoop,
    CursorsRefused,
    EventRecord,
    Page,
    ServerError,
    UnexpectedAnswer,
)

NOW = datetime(2026, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def record(name: str | None, at: datetime | None = None) -> EventRecord:
    return EventRecord.read({"id": name, "created_at": at.isoformat() if at else None})


def paged(*times: datetime | None) -> Page[EventRecord]:
    return Page(tuple(record(f"evt_{number}", at) for number, at in enumerate(times)), None)


@dataclass
class Answers:
    """A list that answers with these, one after the other; with the last one ever after."""

    answers: list[Page[EventRecord] | Exception]
    asked: list[tuple[int, Cursor | None]] = field(default_factory=list)

    async def list(self, *, limit: int = 20, cursor: Cursor | None = None) -> Page[Any]:
        self.asked.append((limit, cursor))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


EMPTY: Page[EventRecord] = Page((), "more")
FULL: Page[EventRecord] = Page((record("evt_1"),), "more")


def pager(*answers: Page[EventRecord] | Exception) -> Pager:
    return Pager(Answers(list(answers) or [FULL]), Locators(), now=NOW, limit=7)


async def test_a_page_that_was_looked_at_is_not_read_again_but_once() -> None:
    # case: B10
    listed = Answers([FULL])
    found = Pager(listed, Locators(), now=NOW, limit=7)
    found.keep("a", EMPTY)
    assert await found.page("a") is EMPTY
    found.begin_pass()
    assert await found.page("a") is FULL
    assert (listed.asked, found.pages_read) == ([(7, "a")], 1)


async def test_a_cursor_comes_once_a_pass_and_the_head_as_often_as_it_is_asked_for() -> None:
    # case: B7
    found = pager()
    await found.page(None)
    await found.page(None)
    assert not found.has_walked("a")
    await found.page("a")
    await found.page("b")
    assert found.has_walked("a")
    with pytest.raises(CursorLoop):
        await found.page("a")
    found.begin_pass()
    await found.page("a")


async def test_a_stored_cursor_that_led_back_is_called_refused_and_after_the_new_beginning_a_loop() -> None:
    # case: B7, B11
    found = pager()
    await found.page("a")
    found.keep("b", EMPTY)
    found.has_jumped = True
    with pytest.raises(CursorRefused):
        await found.page("a")
    found.begin_again()
    await found.page("a")
    assert await found.page("b") is FULL, "what was looked at before is forgotten"
    with pytest.raises(CursorLoop):
        await found.page("a")


@pytest.mark.parametrize("status", [400, 404, 499])
async def test_a_cursor_is_refused_with_any_status_that_blames_the_caller(status: int) -> None:
    # case: B11
    with pytest.raises(CursorRefused):
        await pager(ApiError("made up", status=status)).look("a")


@pytest.mark.parametrize(
    ("cursor", "error"),
    [
        (None, ApiError("made up", status=400)),
        ("a", ApiError("made up", status=399)),
        ("a", ApiError("made up", status=500)),
        ("a", ApiError("made up")),
        ("a", ServerError(status=400)),
    ],
    ids=["without a cursor", "below", "above", "refused here", "may pass"],
)
async def test_other_failures_refuse_no_cursor(cursor: Cursor | None, error: ApiError) -> None:
    # case: B11
    found = pager(error)
    with pytest.raises(ApiError) as caught:
        await found.look(cursor)
    assert (caught.value, found.pages_read) == (error, 0)


async def test_ten_empty_pages_in_a_row_are_borne_and_one_that_ends_the_list() -> None:
    # case: B8
    found = pager(*[EMPTY] * 10, FULL, *[EMPTY] * 10, Page((), None))
    for _ in range(22):
        await found.look("a")
    assert found.pages_read == 22


@pytest.mark.parametrize("before", [[], [FULL]], ids=["at the beginning", "later"])
async def test_eleven_empty_pages_in_a_row_are_a_list_that_does_not_end(before: list[Page[EventRecord]]) -> None:
    # case: B8
    found = pager(*before, EMPTY)
    for _ in range(len(before) + 10):
        await found.look("a")
    with pytest.raises(UnexpectedAnswer):
        await found.look("a")


async def test_a_list_has_so_many_pages_at_most() -> None:
    # case: B8
    found = pager()
    found.pages_read = PAGES_MAX - 1
    await found.look("a")
    with pytest.raises(UnexpectedAnswer):
        await found.look("a")


def test_the_newest_and_oldest_seen_are_kept_over_pages_and_the_newest_never_beyond_our_clock() -> None:
    # case: B34, U22
    found = pager()
    assert (found.newest_at, found.oldest_at) == (None, None)
    assert found.times(paged(NOW - 5 * SECOND, None, NOW - 7 * SECOND)) == [NOW - 5 * SECOND, NOW - 7 * SECOND]
    assert (found.newest_at, found.oldest_at) == (NOW - 5 * SECOND, NOW - 7 * SECOND)
    found.times(paged(NOW - 6 * SECOND))
    assert (found.newest_at, found.oldest_at) == (NOW - 5 * SECOND, NOW - 7 * SECOND)
    assert found.times(paged(NOW + 9 * SECOND)) == [NOW + 9 * SECOND]
    assert (found.newest_at, found.oldest_at) == (NOW, NOW - 7 * SECOND)


def test_what_is_dated_too_far_ahead_counts_as_of_now() -> None:
    # case: U22
    far = NOW + AHEAD_MAX
    found = pager()
    assert found.times(paged(far, far + SECOND)) == [far, NOW]
    assert (found.newest_at, found.oldest_at) == (NOW, NOW)


def test_a_page_is_remembered_by_its_cursor_its_ids_and_its_newest_time() -> None:
    # case: B10
    found = pager()
    assert found.read("a", paged(NOW - 2 * SECOND, NOW - SECOND, None)) == PageRef(
        cursor="a", ids=("evt_0", "evt_1", "evt_2"), newest_at=NOW - SECOND
    )
    nameless = Page((record(None), record("evt_1")), None)
    assert found.read(None, nameless) == PageRef(cursor=None, ids=("evt_1",), newest_at=None)
    assert ids_of(nameless) == ("evt_1",)
    assert meets(nameless, ("evt_0", "evt_1"))
    assert not meets(nameless, ("evt_0",))
    assert not meets(nameless, ())


def recent(pages: int, pages_max: int, newest: Sequence[int | None]) -> RecentPages:
    """After pages `c0`, `c1`… whose newest events happened so many seconds before now."""
    found = RecentPages(pages=pages, pages_max=pages_max)
    for number, seconds in enumerate(newest):
        at = None if seconds is None else NOW - seconds * SECOND
        found.add(PageRef(cursor=f"c{number}", ids=(f"{number}a", f"{number}b"), newest_at=at))
    return found


def test_the_next_walk_goes_back_by_so_many_pages() -> None:
    # case: B10, B34
    found = recent(2, 5, [9, 8, 7, 6, 5])
    assert found.cursors == ("c2", "c3", "c4")
    assert found.ids == ("2a", "2b", "3a", "3b", "4a", "4b")
    assert found.end == PageRef(cursor="c2", ids=("2a", "2b"), newest_at=NOW - 7 * SECOND)
    assert recent(0, 5, [9, 8]).cursors == ("c1",)
    assert recent(2, 5, [9]).cursors == ("c0",)
    none = recent(2, 5, [])
    assert (none.cursors, none.ids, none.end) == ((), (), None)


def test_of_many_ids_the_newest_are_kept() -> None:
    # case: B10
    found = RecentPages(pages=1, pages_max=1)
    found.add(PageRef(cursor=None, ids=tuple(f"a{number}" for number in range(IDS_MAX))))
    found.add(PageRef(cursor="c1", ids=("b0", "b1")))
    assert (len(found.ids), found.ids[0], found.ids[-1]) == (IDS_MAX, "a2", "b1")


@pytest.mark.parametrize(
    ("newest", "cursor"),
    [
        ([9, 8, 3, 2], "c1"),
        ([3, 2, 1], "c0"),
        ([9, 3, 2], "c0"),
        ([9, 5, 4], "c1"),
        ([9, None, 4], "c1"),
        ([9, 8, 5], None),
        ([None, None], None),
        ([], None),
    ],
)
def test_what_is_young_is_read_again_from_the_page_before_the_first_that_shows_it(
    newest: list[int | None], cursor: str | None
) -> None:
    # case: B34
    found = recent(1, 9, newest).before(NOW - 5 * SECOND)
    assert (found and found.cursor) == cursor


def test_as_many_pages_and_one_are_kept_as_the_larger_of_both_bounds_says() -> None:
    # case: B34
    for pages, pages_max in ((2, 1), (1, 2)):
        assert not recent(pages, pages_max, [1, 9, 9]).has_forgotten(NOW - 9 * SECOND)
        found = recent(pages, pages_max, [3, 9, 9, 9])
        assert found.has_forgotten(NOW - 4 * SECOND)
        assert not found.has_forgotten(NOW - 3 * SECOND)


def test_of_what_is_forgotten_the_youngest_counts_wherever_it_was() -> None:
    # case: B34
    found = recent(0, 0, [5, 3, None, 9, 9])
    assert found.has_forgotten(NOW - 4 * SECOND)
    assert not found.has_forgotten(NOW - 3 * SECOND)
    assert not recent(0, 0, [None, None, None]).has_forgotten(NOW - 9 * SECOND)


def head_of(ids: str, seconds: Sequence[int | None], following: Cursor | None = "more") -> Page[EventRecord]:
    """A page of events with these names, each dated so many seconds before now, or not dated."""
    dated = zip(ids, seconds, strict=True)
    return Page(tuple(record(name, None if one is None else NOW - one * SECOND) for name, one in dated), following)


def walk_of(bookmark: Bookmark, *answers: Page[EventRecord] | Exception, sweeps: bool = True) -> Walk:
    policy = WalkPolicy(gap_after=timedelta(0), overlap_every_s=45.0)
    return Walk(
        lister=Answers(list(answers)), locators=Locators(), bookmark=bookmark, now=NOW, policy=policy, sweeps=sweeps
    )


async def first_page(walk: Walk) -> None:
    pages = walk.pages()
    async for _ in pages:
        break
    await pages.aclose()


UNTIMED = (None, None, None)
FALLING, RISING = (1, 2, 3), (3, 2, 1)


@pytest.mark.parametrize(
    ("ids", "seconds", "known", "order", "timed"),
    [
        ("cba", FALLING, "", ListOrder.NEWEST_FIRST, True),
        ("abc", RISING, "", ListOrder.OLDEST_FIRST, True),
        ("abc", RISING, "abc", ListOrder.OLDEST_FIRST, True),
        ("abc", RISING, "bc", ListOrder.UNKNOWN, True),  # the times contradict what was seen
        ("abc", RISING, "xyz", ListOrder.OLDEST_FIRST, True),
        ("cba", FALLING, "ba", ListOrder.NEWEST_FIRST, True),
        ("cba", UNTIMED, "", ListOrder.UNKNOWN, False),
        ("cba", UNTIMED, "ba", ListOrder.NEWEST_FIRST, False),
        ("cba", UNTIMED, "a", ListOrder.NEWEST_FIRST, False),
        ("cba", UNTIMED, "cba", ListOrder.UNKNOWN, False),
        ("cba", UNTIMED, "xyz", ListOrder.UNKNOWN, False),
        ("", (), "cba", ListOrder.UNKNOWN, False),
    ],
)
async def test_the_order_is_what_times_say_and_else_where_the_list_has_grown(
    ids: str, seconds: tuple[int | None, ...], known: str, order: ListOrder, timed: bool
) -> None:
    # case: B5, U6
    walk = walk_of(Bookmark(order=ListOrder.OLDEST_FIRST, head_ids=tuple(known)), head_of(ids, seconds))
    assert walk.order is ListOrder.OLDEST_FIRST, "as the last walk saw it, until the head is read"
    await first_page(walk)
    assert (walk.order, walk.timed) == (order, timed)


@pytest.mark.parametrize(
    ("seconds", "swept_s", "sweeps", "sweeping"),
    [
        (FALLING, None, True, True),
        (FALLING, None, False, True),  # the first one is made in a hurry, too
        (FALLING, 45, True, True),
        (FALLING, 45, False, False),
        (FALLING, 44, True, False),
        (UNTIMED, None, True, False),
    ],
)
async def test_a_sweep_is_made_of_dated_events_when_it_is_due_and_nobody_is_in_a_hurry(
    seconds: tuple[int | None, ...], swept_s: int | None, sweeps: bool, sweeping: bool
) -> None:
    # case: B34
    kept = Bookmark() if swept_s is None else Bookmark(swept_at=NOW - swept_s * SECOND)
    walk = walk_of(kept, head_of("cba", seconds), sweeps=sweeps)
    await first_page(walk)
    assert walk.sweeping is sweeping


KEPT = Bookmark(
    order=ListOrder.NEWEST_FIRST,
    head_ids=("b",),
    tail_ids=("x",),
    tail_cursors=("w",),
    walked_at=NOW - 99 * SECOND,
    swept_at=NOW,
    swept_to=NOW,
    resume=Resume(head_ids=("n",), cursor="m"),
    sweep_from=PageRef(cursor="k", ids=("k1",)),
)


async def test_a_walk_that_begins_again_trusts_no_stored_cursor_and_not_what_it_had_met() -> None:
    # case: B11, B13
    refused = ApiError("made up", status=400)
    walk = walk_of(KEPT, head_of("cba", FALLING), refused, head_of("zy", (1, 2), None))
    pages = walk.pages()
    await anext(pages)
    assert (walk.met, walk.refused, walk.bookmark) == (True, 0, KEPT)
    left = [page.bookmark async for page in pages][-1]
    assert (walk.met, walk.refused, walk.gap) == (False, 1, True), "what was met is gone from the list by now"
    assert walk.bookmark == Bookmark(
        order=ListOrder.NEWEST_FIRST, head_ids=("b",), walked_at=KEPT.walked_at, swept_at=NOW, swept_to=NOW
    )
    assert left.head_ids == ("z", "y")
    assert walk.pages_read == 2


async def test_a_list_that_refuses_its_cursors_twice_is_not_walked_a_third_time() -> None:
    # case: B11
    refused = ApiError("made up", status=400)
    walk = walk_of(KEPT, head_of("cba", FALLING), refused, head_of("cba", FALLING), refused)
    with pytest.raises(CursorsRefused):
        async for _ in walk.pages():
            pass
    assert (walk.refused, walk.pages_read) == (1, 2)
