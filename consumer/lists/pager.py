"""Pager: reads the pages of `/v1/events` for a walk, and keeps what cursors and times tell (cases B7, B11)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from consumer.events import Locators, first, parse_time
from consumer.lists.bookmark import AHEAD_MAX, PageRef
from consumer.payments import EMPTY_PAGES_MAX, ApiError, Cursor, CursorLoop, EventRecord, Page, UnexpectedAnswer

PAGES_MAX: Final = 200_000


class Lister(Protocol):
    """A list of the service: `consumer.payments` has it, and so have the tests' scripted lists."""

    async def list(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page[Any]:
        """One page; `cursor` is the `next_cursor` of the page before."""
        ...


class CursorRefused(Exception):
    """The service does not accept a cursor (any more)."""


class Pager:
    """The pages of one walk that began at `now`. `newest_at`, `oldest_at`: the times of the events seen so far."""

    def __init__(self, lister: Lister, locators: Locators, *, now: datetime, limit: int) -> None:
        self._lister = lister
        self._locators = locators
        self._now = now
        self._limit = limit
        self._walked: set[str] = set()
        self._ahead: dict[str, Page[EventRecord]] = {}
        self._empty = 0
        self.pages_read = 0
        self.newest_at: datetime | None = None
        self.oldest_at: datetime | None = None
        self.has_jumped = False

    async def page(self, cursor: Cursor | None) -> Page[EventRecord]:
        """The next page of the walk. Raises CursorLoop when its cursor was walked already, CursorRefused, and what the
        lister raises."""
        if cursor is not None:
            if self.has_walked(cursor) and self.has_jumped:
                raise CursorRefused  # what was stored led back to where we have been: it was not taken as it was meant
            if self.has_walked(cursor):
                raise CursorLoop(route="/v1/events", pages=self.pages_read)
            self._walked.add(str(cursor))
        ahead = self._ahead.pop(str(cursor), None)
        return await self.look(cursor) if ahead is None else ahead

    async def look(self, cursor: Cursor | None) -> Page[EventRecord]:
        """A page beside the walk. Raises CursorRefused, and what the lister raises."""
        if self.pages_read >= PAGES_MAX:
            raise UnexpectedAnswer("the list does not end", pages=self.pages_read)
        try:
            page: Page[EventRecord] = await self._lister.list(limit=self._limit, cursor=cursor)
        except ApiError as error:
            if cursor is not None and not error.retryable and error.status is not None and 400 <= error.status < 500:
                raise CursorRefused from error
            raise
        self.pages_read += 1
        self._empty = 0 if page.items else self._empty + 1
        if self._empty > EMPTY_PAGES_MAX and page.next_cursor is not None:
            raise UnexpectedAnswer("the list shows empty pages and does not end", pages=self.pages_read)
        return page

    def keep(self, cursor: Cursor | None, page: Page[EventRecord]) -> None:
        """What was looked at is not read again when the walk comes there."""
        self._ahead[str(cursor)] = page

    def has_walked(self, cursor: Cursor) -> bool:
        """Whether the walk was at this cursor."""
        return str(cursor) in self._walked

    def begin_pass(self) -> None:
        """Another pass: it may well come to where the last one has been."""
        self._walked.clear()

    def begin_again(self) -> None:
        """The walk begins anew at the head."""
        self._walked.clear()
        self._ahead.clear()
        self.has_jumped = False

    def read(self, cursor: Cursor | None, page: Page[EventRecord]) -> PageRef:
        """A page of the walk, to remember."""
        return PageRef(cursor=cursor, ids=ids_of(page), newest_at=max(self.times(page), default=None))

    def times(self, page: Page[EventRecord]) -> list[datetime]:
        """The times of its events, of those that show one."""
        return [time for item in page.items if (time := self.time(item)) is not None]

    def time(self, item: EventRecord) -> datetime | None:
        """When the event happened, as far as the record shows it. Up to AHEAD_MAX ahead it tells the order of a list,
        but it leads no walk beyond its own time."""
        time = parse_time(first(item.raw, self._locators.time))
        if time is not None:
            time = time if time <= self._now + AHEAD_MAX else self._now
            self.newest_at = max(min(time, self._now), self.newest_at or min(time, self._now))
            self.oldest_at = min(time, self.oldest_at or time)
        return time


def ids_of(page: Page[Any]) -> tuple[str, ...]:
    """The ids on a page."""
    return tuple(item.id for item in page.items if item.id is not None)


def meets(page: Page[EventRecord], ids: Sequence[str]) -> bool:
    """Whether one of these is on the page."""
    known = frozenset(ids)
    return any(item.id in known for item in page.items)
