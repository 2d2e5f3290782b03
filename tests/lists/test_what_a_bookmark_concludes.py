"""What may be concluded from a bookmark: orders of lists, gaps, sweeps, and what a broken one is worth. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from consumer.lists.bookmark import AHEAD_MAX, Bookmark, ListOrder, PageRef, Resume, is_gap, order_of

NOW = datetime(2026, 5, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
WHOLE = Bookmark(
    order=ListOrder.OLDEST_FIRST,
    head_ids=("a", "b"),
    tail_ids=("y", "z"),
    tail_cursors=(None, "x"),
    newest_at=NOW - HOUR,
    walked_at=NOW - 2 * HOUR,
    resume=Resume(head_ids=("a",), cursor="m", begun_to=NOW - 3 * HOUR),
    swept_at=NOW - 4 * HOUR,
    swept_to=NOW - 5 * HOUR,
    sweep_from=PageRef(cursor="k", ids=("k1", "k2")),
)


def test_what_is_kept_is_read_again() -> None:
    # case: B10
    for one in (WHOLE, Bookmark(), replace(WHOLE, resume=Resume(head_ids=(), cursor=7)), replace(WHOLE, resume=None)):
        assert Bookmark.load(one.dump()) == one
    assert Bookmark.load(None) == Bookmark()


def test_one_from_before_there_were_sweeps_is_read() -> None:
    older = {name: value for name, value in WHOLE.dump().items() if name not in ("swept_at", "swept_to", "anchor")}
    older["resume"] = {"head_ids": ["a"], "cursor": "m"}
    found = Bookmark.load(older)
    assert (found.newest_at, found.swept_at, found.swept_to, found.sweep_from) == (WHOLE.newest_at, None, None, None)
    assert found.resume == Resume(head_ids=("a",), cursor="m")


@pytest.mark.parametrize("broken", [{"order": "sideways"}, {"head_ids": None}, {"resume": "x"}, {"anchor": 3}])
def test_what_cannot_be_read_is_a_fresh_walk(broken: dict[str, object]) -> None:
    # case: B10
    assert Bookmark.load({**WHOLE.dump(), **broken}) == Bookmark()
    assert Bookmark.load({}) == Bookmark()


@pytest.mark.parametrize(
    ("order", "newest"),
    [
        (ListOrder.NEWEST_FIRST, {"a", "b"}),
        (ListOrder.OLDEST_FIRST, {"y", "z"}),
        (ListOrder.UNKNOWN, {"a", "b", "y", "z"}),
    ],
)
def test_the_newest_are_at_the_end_that_the_order_says(order: ListOrder, newest: set[str]) -> None:
    # case: B3, U6
    assert replace(WHOLE, order=order).newest_ids == newest


def times(*hours: int | None) -> list[datetime | None]:
    return [None if one is None else NOW + one * HOUR for one in hours]


@pytest.mark.parametrize(
    ("hours", "order"),
    [
        ((1, 2, 3), ListOrder.OLDEST_FIRST),
        ((3, 2, 1), ListOrder.NEWEST_FIRST),
        ((1, None, 2), ListOrder.OLDEST_FIRST),
        ((1, 1, 1), ListOrder.UNKNOWN),
        ((), ListOrder.UNKNOWN),
        ((1,), ListOrder.UNKNOWN),
        ((1, 2, 3, 4, 5, 4), ListOrder.UNKNOWN),  # four up, one down: no more than four times as many
        ((1, 2, 3, 4, 5, 6, 5), ListOrder.OLDEST_FIRST),
        ((6, 5, 4, 3, 2, 3), ListOrder.UNKNOWN),
        ((6, 5, 4, 3, 2, 1, 2), ListOrder.NEWEST_FIRST),
        ((1, 2, 2, 2), ListOrder.OLDEST_FIRST),
    ],
)
def test_a_few_swapped_times_change_no_order(hours: tuple[int | None, ...], order: ListOrder) -> None:
    # case: U6
    assert order_of(times(*hours)) is order


@pytest.mark.parametrize(
    ("walked_ago", "oldest_ago", "gap"),
    [
        (None, HOUR, False),
        (2 * HOUR, HOUR, True),
        (2 * HOUR, None, True),
        (2 * HOUR, 2 * HOUR + timedelta(minutes=2), False),  # reaches back to the last walk, clocks apart
        (2 * HOUR, 2 * HOUR + timedelta(minutes=2) - SECOND, True),
        (2 * HOUR, 3 * HOUR, False),
        (HOUR - SECOND, None, False),
        (HOUR, None, True),
    ],
)
def test_a_gap_is_where_the_list_does_not_reach_back(
    walked_ago: timedelta | None, oldest_ago: timedelta | None, gap: bool
) -> None:
    # case: B13
    bookmark = Bookmark(walked_at=None if walked_ago is None else NOW - walked_ago)
    oldest_at = None if oldest_ago is None else NOW - oldest_ago
    assert is_gap(bookmark, oldest_at=oldest_at, now=NOW, gap_after=HOUR) is gap


def test_when_the_next_sweep_is_due() -> None:
    # case: B34
    swept = Bookmark(swept_at=NOW)
    assert Bookmark().sweep_due(NOW, 60)
    assert not swept.sweep_due(NOW, 60)
    assert not swept.sweep_due(NOW + 59 * SECOND, 60)
    assert swept.sweep_due(NOW + 60 * SECOND, 60)
    assert swept.sweep_due(NOW - SECOND, 60), "our clock was set back"


def test_time_that_passed_for_us_passed_for_the_service() -> None:
    # case: B34
    swept = Bookmark(swept_at=NOW, swept_to=NOW - HOUR)
    assert Bookmark().begun_to(None, NOW) is None
    assert Bookmark().begun_to(NOW - HOUR, NOW) == NOW - HOUR
    assert swept.begun_to(None, NOW + HOUR) == NOW
    assert swept.begun_to(NOW - 2 * HOUR, NOW + HOUR) == NOW
    assert swept.begun_to(NOW + HOUR, NOW + HOUR) == NOW + HOUR
    ahead = Bookmark(swept_at=NOW, swept_to=NOW + HOUR)
    assert ahead.begun_to(None, NOW + SECOND) == NOW + SECOND, "never beyond our clock"
    assert Bookmark(swept_at=NOW).begun_to(None, NOW) is None
    assert Bookmark(swept_to=NOW).begun_to(None, NOW) is None


def test_how_far_was_seen() -> None:
    # case: B34
    assert Bookmark(swept_to=NOW, newest_at=NOW - HOUR, walked_at=NOW - HOUR).seen_to == NOW
    assert Bookmark(newest_at=NOW, walked_at=NOW - HOUR).seen_to == NOW - HOUR
    assert Bookmark(newest_at=NOW - HOUR, walked_at=NOW).seen_to == NOW - HOUR
    assert Bookmark(newest_at=NOW).seen_to is None
    assert Bookmark(walked_at=NOW).seen_to is None


def test_one_that_was_led_ahead_of_all_clocks_is_a_fresh_one() -> None:
    # case: B34, U22
    far = NOW + AHEAD_MAX + SECOND
    for led in (
        replace(WHOLE, newest_at=far),
        replace(WHOLE, swept_to=far),
        replace(WHOLE, resume=Resume(head_ids=(), cursor="m", begun_to=far)),
    ):
        assert led.believable(NOW) == Bookmark()
        assert led.believable(NOW + SECOND) != Bookmark()
    assert WHOLE.believable(NOW) == WHOLE
    assert replace(WHOLE, resume=None).believable(NOW) == replace(WHOLE, resume=None)
    ahead = replace(WHOLE, newest_at=NOW + HOUR, swept_to=NOW + HOUR).believable(NOW)
    assert (ahead.newest_at, ahead.swept_to, ahead.head_ids) == (NOW, NOW, WHOLE.head_ids)
    empty = replace(WHOLE, newest_at=None, swept_to=None).believable(NOW)
    assert (empty.newest_at, empty.swept_to) == (None, None)
