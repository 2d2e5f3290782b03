"""Ends: what is new in a list is shown once its end was reached, at whichever end it stands, a few pages a look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from consumer.events import Locators
from consumer.lists.bookmark import ListOrder, Place
from consumer.lists.ends import Look, look
from consumer.payments import ApiError, Cursor, EventRecord, Page, ServerError

NOW = datetime(2026, 5, 1, tzinfo=UTC)
BEFORE = NOW - timedelta(hours=1)


@dataclass
class Listed:
    """A list of these names, two a page; a cursor is where its page begins. `asked`: the cursors, as they came.
    `rising`: each is dated later than the one before; they have no times otherwise."""

    names: str
    rising: bool | None = None
    failures: dict[Cursor, ApiError] = field(default_factory=dict)
    empty: Cursor | None = None
    asked: list[Cursor | None] = field(default_factory=list)

    async def list(self, *, limit: int = 20, cursor: Cursor | None = None) -> Page[Any]:
        assert limit == 100
        self.asked.append(cursor)
        if cursor in self.failures:
            raise self.failures[cursor]
        start = int(cursor or 0)
        following = start + 2 if start + 2 < len(self.names) else None
        items = [self._record(number) for number in range(start, min(start + 2, len(self.names)))]
        return Page(() if cursor is not None and cursor == self.empty else tuple(items), following)

    def _record(self, number: int) -> EventRecord:
        document = {"id": self.names[number]}
        if self.rising is not None:
            at = NOW + timedelta(minutes=number if self.rising else -number)
            document["created_at"] = at.isoformat()
        return EventRecord.read(document)


async def seen(listed: Listed, before: Place | None = None, order: ListOrder = ListOrder.UNKNOWN) -> Look:
    return await look(listed, before or Place(), order, Locators(), NOW)


def names(shown: Sequence[Any]) -> str:
    return "".join(one.id for one in shown)


def told(found: Look) -> tuple[str, str]:
    return names(found.old), names(found.new)


async def test_a_list_of_one_page_is_old_at_first_and_shown_whole_ever_after() -> None:
    # case: U6
    first = await seen(Listed("ab"))
    assert told(first) == ("ab", "")
    assert first.place == Place(head=("a", "b"), tail=("a", "b"), seen_at=NOW)
    again = await seen(Listed("b"), first.place)
    assert told(again) == ("", "b")
    assert again.place == Place(head=("b",), tail=("b",), seen_at=NOW)


async def test_what_comes_to_a_list_that_was_empty_is_new() -> None:
    # case: U6
    empty = await seen(Listed(""))
    assert (told(empty), empty.place) == (("", ""), Place(seen_at=NOW))
    assert told(await seen(Listed("ab"), empty.place)) == ("", "ab")
    assert told(await seen(Listed("abcde"), empty.place)) == ("", "abcde"), "on its first page as well"


async def test_a_list_that_is_empty_for_once_keeps_its_head() -> None:
    # case: U6
    found = await seen(Listed(""), Place(head=("a",), grows_there=True, seen_at=BEFORE))
    assert found.place == Place(head=("a",), grows_there=True, seen_at=NOW)


@pytest.mark.parametrize(
    ("rising", "order", "grows"),
    [
        (False, ListOrder.OLDEST_FIRST, False),
        (False, ListOrder.UNKNOWN, False),
        (None, ListOrder.NEWEST_FIRST, False),
        (None, ListOrder.OLDEST_FIRST, True),
    ],
    ids=["by its times", "by its times alone", "as known from elsewhere", "as it was seen to grow"],
)
async def test_of_a_list_that_is_newest_first_one_page_is_read(
    rising: bool | None, order: ListOrder, grows: bool
) -> None:
    # case: U6
    listed = Listed("edcba", rising=rising)
    before = Place(head=("e", "d"), grows_there=grows, cursor=2, tail=("x",), seen_at=BEFORE)
    found = await seen(listed, before, order)
    assert (told(found), listed.asked) == (("", "ed"), [None])
    assert found.place == Place(head=("e", "d"), grows_there=grows, seen_at=NOW)
    assert told(await seen(listed, Place(grows_there=grows), order)) == ("ed", ""), "the first look shows what is old"


@pytest.mark.parametrize(
    ("known", "grows"),
    [("ed", True), ("xe", True), ("fe", False), ("dc", False), ("", False)],
    ids=["one more", "one more of others", "the same", "nothing known is shown", "nothing was known"],
)
async def test_a_list_grows_at_its_head_where_something_new_stands_before_something_known(
    known: str, grows: bool
) -> None:
    # case: U6
    found = await seen(Listed("fe"), Place(head=tuple(known), seen_at=BEFORE))
    assert found.place.grows_there is grows


async def test_times_tell_more_than_what_was_known_or_seen() -> None:
    # case: U6
    listed = Listed("abcd", rising=True)
    found = await seen(listed, Place(head=("a", "b"), grows_there=True, seen_at=BEFORE), ListOrder.NEWEST_FIRST)
    assert listed.asked == [None, None, 2]
    assert found.place.tail == ("c", "d")


async def test_the_other_end_is_come_to_a_few_pages_a_look_and_nothing_on_the_way_is_new() -> None:
    # case: U6
    listed = Listed("abcdefghijklm")
    first = await seen(listed)
    assert listed.asked == [None, None, 2, 4, 6, 8]
    assert (told(first), first.place) == (("ab", ""), Place(head=("a", "b"), cursor=8))
    listed.asked.clear()
    second = await seen(listed, first.place)
    assert listed.asked == [None, 8, 10, 12]
    assert told(second) == ("m", ""), "what stands at the end when that is first reached"
    assert second.place == Place(head=("a", "b"), cursor=12, tail=("m",), seen_at=NOW)


async def test_an_end_that_the_first_look_comes_to_is_old_like_the_head() -> None:
    # case: U6
    found = await seen(Listed("abcde"))
    assert told(found) == ("abe", "")
    assert found.place == Place(head=("a", "b"), cursor=4, tail=("e",), seen_at=NOW)


async def test_behind_what_stood_at_the_end_everything_is_new() -> None:
    # case: U6
    place = Place(head=("a", "b"), cursor=2, tail=("d",), seen_at=BEFORE)
    listed = Listed("abcdefg")
    found = await seen(listed, place)
    assert listed.asked == [None, 2, 4, 6]
    assert told(found) == ("", "defg")
    assert found.place == Place(head=("a", "b"), cursor=6, tail=("g",), seen_at=NOW)


async def test_a_burst_is_shown_over_several_looks_and_none_of_it_is_passed_over() -> None:
    # case: U6
    place = Place(head=("a", "b"), cursor=0, tail=("b",), seen_at=BEFORE)
    listed = Listed("abcdefghijkl")
    first = await seen(listed, place)
    assert told(first) == ("", "bcdefghij")
    assert first.place == Place(head=("a", "b"), cursor=8, tail=("i", "j"), seen_at=BEFORE), "the end is not seen yet"
    second = await seen(listed, first.place)
    assert told(second) == ("", "ijkl")
    assert second.place == Place(head=("a", "b"), cursor=10, tail=("k", "l"), seen_at=NOW)


async def test_where_a_cursor_is_refused_the_next_look_begins_at_the_head_and_calls_nothing_new_that_was_seen() -> None:
    # case: U6, B11
    place = Place(head=("a", "b"), cursor=2, tail=("d",), seen_at=BEFORE)
    listed = Listed("abcdefg", failures={4: ApiError("made up", status=400)})
    found = await seen(listed, place)
    assert told(found) == ("", "d"), "what was read before the refusal counts"
    assert found.place == Place(head=("a", "b"), tail=("d",), seen_at=BEFORE)
    listed.failures.clear()
    listed.asked.clear()
    again = await seen(listed, found.place)
    assert listed.asked == [None, None, 2, 4, 6]
    assert told(again) == ("", "defg")
    assert again.place == Place(head=("a", "b"), cursor=6, tail=("g",), seen_at=NOW)


async def test_a_failure_that_may_pass_is_raised_and_no_cursor_is_forgotten() -> None:
    # case: U6
    listed = Listed("abcdefg", failures={2: ServerError(status=503)})
    with pytest.raises(ServerError):
        await seen(listed, Place(head=("a", "b"), cursor=2, seen_at=BEFORE))


async def test_a_head_that_is_refused_the_second_time_is_no_refused_cursor() -> None:
    # case: U6
    listed = Listed("abcdefg")
    page = listed.list

    async def once(*, limit: int = 20, cursor: Cursor | None = None) -> Page[Any]:
        if listed.asked:
            raise ApiError("made up", status=400)
        return await page(limit=limit, cursor=cursor)

    listed.list = once  # type: ignore[method-assign]  # the scripted refusal
    with pytest.raises(ApiError):
        await seen(listed)


async def test_an_empty_page_is_the_end_of_a_list_though_it_names_another() -> None:
    # case: U6
    listed = Listed("abcdefg", empty=4)
    found = await seen(listed, Place(head=("a", "b"), cursor=2, tail=("c",), seen_at=BEFORE))
    assert listed.asked == [None, 2, 4]
    assert told(found) == ("", "cd")
    assert found.place == Place(head=("a", "b"), cursor=2, tail=("c", "d"), seen_at=NOW), "read again from there"


async def test_what_stood_at_the_end_stays_known_while_nothing_stands_behind_it() -> None:
    # case: U6
    place = Place(head=("a", "b"), cursor=4, tail=("d",), seen_at=BEFORE)
    found = await seen(Listed("abcdefg", empty=4), place)
    assert told(found) == ("", "")
    assert found.place == Place(head=("a", "b"), cursor=4, tail=("d",), seen_at=NOW)
