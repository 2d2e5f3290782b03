"""Ends: the newest of one list, whichever of its two ends that is (case U6). Nothing documents the order of a list.

Where the times of its items show the newest first, or it was seen to grow at its head, the first page is enough.
Elsewhere it is followed to its other end as well, a few pages a look, and read on from there each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from consumer.events import Locators, first, parse_time
from consumer.lists.bookmark import ListOrder, Place, order_of
from consumer.lists.pager import Lister, ids_of
from consumer.payments import ApiError, Page

PAGE: Final = 100
PAGES_AT_ONCE: Final = 5


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one look showed: `old` when an end was reached for the first time, `new` ever after."""

    new: Sequence[Any]
    old: Sequence[Any]
    place: Place


async def look(lister: Lister, before: Place, order: ListOrder, locators: Locators, now: datetime) -> Look:
    """One look at a list; `order` as it is known from elsewhere. Raises PaymentsError."""
    head = await lister.list(limit=PAGE)
    ids = ids_of(head)
    grew = bool(ids) and ids[0] not in before.head and any(one in before.head for one in ids)
    place = replace(before, head=ids or before.head, grows_there=before.grows_there or grew)
    by_time = order_of([parse_time(first(item.raw, locators.time)) for item in head.items])
    if by_time is ListOrder.UNKNOWN:
        by_time = ListOrder.NEWEST_FIRST if place.grows_there else order
    is_first = before.seen_at is None and not before.head
    is_whole = head.next_cursor is None or not head.items
    if is_whole or by_time is ListOrder.NEWEST_FIRST:
        shown = replace(place, cursor=None, tail=ids if is_whole else (), seen_at=now)
        return Look(new=(), old=head.items, place=shown) if is_first else Look(new=head.items, old=(), place=shown)
    tail = await _tail(lister, place, now, was_empty=before.seen_at is not None and not before.head)
    return replace(tail, old=(*head.items, *tail.old)) if is_first else tail


async def _tail(lister: Lister, place: Place, now: datetime, *, was_empty: bool) -> Look:
    """The end that is not the head. Behind what stood there the last time everything is new, wherever it was begun."""
    new: list[Any] = []
    last: Page[Any] | None = None
    is_beyond = was_empty
    for _ in range(PAGES_AT_ONCE):
        cursor = place.cursor if last is None else last.next_cursor
        try:
            page = await lister.list(limit=PAGE, cursor=cursor)
        except ApiError as error:
            if cursor is None or error.retryable:
                raise
            return Look(new=new, old=(), place=replace(place, cursor=None))  # from the beginning
        known = (number for number, one in enumerate(page.items) if is_beyond or one.id in place.tail)
        begins = next(known, len(page.items))
        is_beyond = is_beyond or begins < len(page.items)
        new += page.items[begins:]
        is_at_end = page.next_cursor is None or not page.items
        if page.items:
            last, place = page, replace(place, cursor=cursor)
        if is_at_end:
            break
    shown = ids_of(last) if last is not None else ()
    if is_beyond:  # should this look be cut by a burst, the next one begins behind what it showed
        place = replace(place, tail=shown or place.tail)
    if not is_at_end:
        return Look(new=new, old=(), place=place)
    old = () if is_beyond or last is None else last.items
    return Look(new=new, old=old, place=replace(place, tail=shown or place.tail, seen_at=now))
