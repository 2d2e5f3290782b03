"""Feed: one walk of `/v1/events`, whatever order and cursors the service uses (cases B1-B12, B34, U6).

A walk reads the head of the list, sees the order, and continues where news can be: newest first from the head until
it meets what the last walk saw, oldest first from the stored cursor on. When the order cannot be told, both ends are
walked. What cannot be joined to the last walk is walked from the head to the end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog

from consumer.events import Locators, first, parse_time
from consumer.payments import (
    ApiError,
    AuthenticationError,
    Cursor,
    CursorLoop,
    EventRecord,
    Page,
    RateLimitError,
    UnexpectedAnswer,
)
from consumer.sync.mark import IDS_MAX, ListOrder, Mark, Resume, is_gap, order_of

LOG = structlog.get_logger()

PAGES_MAX: Final = 200_000
EMPTY_PAGES_MAX: Final = 10


class EventLister(Protocol):
    """What a walk needs of the API: `consumer.payments` has it, and so have the tests' scripted lists."""

    async def list(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page[EventRecord]:
        """One page; `cursor` is the `next_cursor` of the page before."""
        ...


@dataclass(frozen=True, kw_only=True)
class FeedPolicy:
    """`overlap_pages`: how many pages beyond the mark are read again each time, for events that became visible late.
    `gap_after`: how old the last complete walk must be for a gap to be possible. `limit`: events a page."""

    overlap_pages: int = 1
    gap_after: timedelta = timedelta(hours=1)
    limit: int = 100


@dataclass(frozen=True, kw_only=True)
class FeedPage:
    """One page of events. `mark` is what may be stored once this page and all before it are published."""

    items: tuple[EventRecord, ...]
    mark: Mark
    reached_at: datetime | None


class CursorRefused(Exception):
    """The service does not accept a cursor (any more)."""


@dataclass(kw_only=True)
class Walk:
    """One walk. Iterate over `pages()`; the rest says afterwards how it went.

    `since` ends the walk of a newest-first list early, and so does a page with one of `stop_ids`.

    `order` as seen, `gap` whether events may have been lost (B13), `refused` how many cursors were refused (B11),
    `met` whether the last complete walk was joined. Raises what the lister raises, and CursorLoop (B7).
    """

    lister: EventLister
    locators: Locators
    mark: Mark
    now: datetime
    policy: FeedPolicy = field(default_factory=FeedPolicy)
    since: datetime | None = None
    stop_ids: frozenset[str] = frozenset()
    pages_max: int = PAGES_MAX

    order: ListOrder = ListOrder.UNKNOWN
    gap: bool = False
    refused: int = 0
    met: bool = False
    pages_read: int = 0
    _times: list[datetime | None] = field(default_factory=list)
    _head_ids: tuple[str, ...] = ()
    _newest_at: datetime | None = None
    _oldest_at: datetime | None = None
    _seen_cursors: set[str] = field(default_factory=set)
    _looked: dict[str, Page[EventRecord]] = field(default_factory=dict)
    _tail_found: bool | None = None
    _jumped: bool = False

    async def pages(self) -> AsyncGenerator[FeedPage, None]:
        """The pages with possible news, each once it is asked for; complete when it ends by itself."""
        try:
            async for page in self._walk():
                yield page
        except CursorRefused:
            LOG.warning("the service refuses a cursor it handed out: the walk begins again at the head")
            self._begin_again()
            try:
                async for page in self._walk():
                    yield page
            except CursorRefused as error:
                raise UnexpectedAnswer("the service refuses its own cursors", route="/v1/events") from error

    async def _walk(self) -> AsyncGenerator[FeedPage, None]:
        head = await self._page(None)
        self._head_ids = _ids(head)
        self.order = self._seen_order(head)
        # Nothing to join: a list of one page is read already, and newest first the news are here.
        from_tail = self.order is ListOrder.OLDEST_FIRST and head.next_cursor is not None and await self._tail_leads()
        async for page in self._tail() if from_tail else self._from_head(head):
            yield page

    # --- from the head -----------------------------------------------------------------------------------------

    async def _from_head(self, head: Page[EventRecord]) -> AsyncGenerator[FeedPage, None]:
        """From the head until the mark is met, and on to the end when it never is."""
        page = head
        asked: list[tuple[Cursor | None, tuple[str, ...]]] = [(None, _ids(head))]
        beyond = 0
        while True:
            self._note_meeting(page)
            beyond += self.met
            cursor = page.next_cursor
            if cursor is None:
                last = self._feed_page(page, self._finished(asked))
                self._judge_gap()
                yield last
                return
            joined = beyond > self.policy.overlap_pages and self.order is not ListOrder.OLDEST_FIRST
            if joined or self._before_since(page) or _meets(page, tuple(self.stop_ids)):
                if self.order is ListOrder.NEWEST_FIRST:
                    yield self._feed_page(page, self._finished([]))
                    return
                if await self._tail_leads():  # news may be at either end: the other one is still to be walked
                    yield self._feed_page(page, self.mark)
                    async for more in self._tail():
                        yield more
                    return
            resume = self.mark.resume
            if resume is not None and _meets(page, resume.head_ids) and await self._leads(resume.cursor):
                cursor = resume.cursor
                asked.clear()
            if resume is not None and _meets(page, resume.head_ids):
                self.mark = replace(self.mark, resume=None)
            yield self._feed_page(page, self._interrupted(cursor))
            page = await self._page(cursor)
            asked = [*asked[-self.policy.overlap_pages :], (cursor, _ids(page))]

    async def _leads(self, cursor: Cursor) -> bool:
        """Whether the service still takes the cursor where an interrupted walk would have gone on."""
        if str(cursor) in self._seen_cursors:
            return False
        try:
            self._looked[str(cursor)] = await self._fetched(cursor)
        except CursorRefused:
            self.refused += 1
            return False
        self._jumped = True
        return True

    # --- from the tail -----------------------------------------------------------------------------------------

    async def _tail_leads(self) -> bool:
        """Whether the stored cursor still leads to where the last walk ended (cases B10, B11). Asked once a walk."""
        if self._tail_found is None:
            self._tail_found = await self._find_tail()
        return self._tail_found

    async def _find_tail(self) -> bool:
        if not self.mark.tail_cursors or self.mark.walked_at is None:
            return False
        cursor = self.mark.tail_cursors[0]
        try:
            page = await self._fetched(cursor)
        except CursorRefused:
            page = None
        if page is not None and _meets(page, self.mark.tail_ids):
            self._looked[str(cursor)] = page
            return True
        if self.order is ListOrder.OLDEST_FIRST:
            self.refused += 1
            LOG.warning("the stored cursor leads nowhere: the list is walked from its head")
        return False

    async def _tail(self) -> AsyncGenerator[FeedPage, None]:
        """From the stored cursor to the end; what was read counts at once, as all before it was read earlier."""
        asked: list[tuple[Cursor | None, tuple[str, ...]]] = []
        cursor = self.mark.tail_cursors[0]
        self.met = True
        self._seen_cursors.clear()  # another pass: it may well come to where the head's pass has been
        while True:
            page = await self._page(cursor)
            asked = [*asked[-self.policy.overlap_pages :], (cursor, _ids(page))]
            if page.next_cursor is None:
                yield self._feed_page(page, self._finished(asked))
                return
            moved = replace(self.mark, tail_ids=_all_ids(asked), tail_cursors=tuple(one for one, _ in asked))
            yield self._feed_page(page, moved if self.order is ListOrder.OLDEST_FIRST else self.mark)
            cursor = page.next_cursor

    # --- what the pages tell -----------------------------------------------------------------------------------

    async def _page(self, cursor: Cursor | None) -> Page[EventRecord]:
        """The next page of the walk. Raises CursorLoop when its cursor was walked already."""
        if cursor is not None:
            if str(cursor) in self._seen_cursors and self._jumped:
                raise CursorRefused  # what was stored led back to where we have been: it was not taken as it was meant
            if str(cursor) in self._seen_cursors:
                raise CursorLoop(route="/v1/events", pages=self.pages_read)
            self._seen_cursors.add(str(cursor))
        looked = self._looked.pop(str(cursor), None)
        return await self._fetched(cursor) if looked is None else looked

    async def _fetched(self, cursor: Cursor | None) -> Page[EventRecord]:
        if self.pages_read >= self.pages_max:
            raise UnexpectedAnswer("the list does not end", pages=self.pages_read)
        try:
            page = await self.lister.list(limit=self.policy.limit, cursor=cursor)
        except (AuthenticationError, RateLimitError):
            raise
        except ApiError as error:
            if cursor is not None and not error.retryable and error.status is not None and 400 <= error.status < 500:
                raise CursorRefused from error
            raise
        self.pages_read += 1
        return page

    def _begin_again(self) -> None:
        self.refused += 1
        self.mark = replace(self.mark, resume=None, tail_cursors=(), tail_ids=())
        self._seen_cursors.clear()
        self._looked.clear()
        self._tail_found = False
        self._jumped = False
        self.met = False

    def _seen_order(self, head: Page[EventRecord]) -> ListOrder:
        """By the events' times; when those say nothing, by where the list has grown since the last walk."""
        by_time = order_of([self._time(item) for item in head.items])
        ids, before = _ids(head), self.mark.head_ids
        grew_at_head = bool(before and ids) and ids[0] not in before and _meets(head, before)
        match by_time:
            case ListOrder.UNKNOWN if grew_at_head:
                return ListOrder.NEWEST_FIRST
            case ListOrder.OLDEST_FIRST if grew_at_head:
                return ListOrder.UNKNOWN  # the times contradict the list: both ends are walked
        return by_time

    def _note_meeting(self, page: Page[EventRecord]) -> None:
        if not self.met and self.mark.walked_at is not None:
            self.met = _meets(page, tuple(self.mark.newest_ids))

    def _before_since(self, page: Page[EventRecord]) -> bool:
        if self.since is None or self.order is not ListOrder.NEWEST_FIRST or not page.items:
            return False
        times = [self._time(item) for item in page.items]
        return all(time is not None and time < self.since for time in times)

    def _judge_gap(self) -> None:
        if self.met:
            return
        # Times that do not even show an order prove nothing about how far back the list reaches.
        oldest_at = None if self.order is ListOrder.UNKNOWN else self._oldest_at
        self.gap = is_gap(self.mark, oldest_at=oldest_at, now=self.now, gap_after=self.policy.gap_after)

    def _feed_page(self, page: Page[EventRecord], mark: Mark) -> FeedPage:
        times = [time for item in page.items if (time := self._time(item)) is not None]
        reached = (max(times) if self.order is ListOrder.OLDEST_FIRST else min(times)) if times else None
        return FeedPage(items=page.items, mark=mark, reached_at=reached)

    def _time(self, item: EventRecord) -> datetime | None:
        time = parse_time(first(item.raw, self.locators.time))
        if time is not None:
            self._newest_at = max(time, self._newest_at or time)
            self._oldest_at = min(time, self._oldest_at or time)
        return time

    # --- marks -------------------------------------------------------------------------------------------------

    def _interrupted(self, cursor: Cursor) -> Mark:
        """The old mark, and where this walk would go on. An older interruption is kept: it saves more."""
        if self.mark.resume is not None:
            return self.mark
        return replace(self.mark, resume=Resume(head_ids=self._head_ids[:IDS_MAX], cursor=cursor))

    def _finished(self, asked: Sequence[tuple[Cursor | None, tuple[str, ...]]]) -> Mark:
        """The window is complete. `asked` are the last pages, if the end was reached; else the tail stays known."""
        return Mark(
            order=self.order,
            head_ids=self._head_ids[:IDS_MAX],
            tail_ids=_all_ids(asked) if asked else self.mark.tail_ids,
            tail_cursors=tuple(cursor for cursor, _ in asked) if asked else self.mark.tail_cursors,
            newest_at=max(filter(None, (self._newest_at, self.mark.newest_at)), default=None),
            walked_at=self.now,
        )


def _all_ids(asked: Sequence[tuple[Cursor | None, tuple[str, ...]]]) -> tuple[str, ...]:
    return tuple(one for _, ids in asked for one in ids)[-IDS_MAX:]


def _ids(page: Page[EventRecord]) -> tuple[str, ...]:
    return tuple(item.id for item in page.items if item.id is not None)


def _meets(page: Page[EventRecord], ids: Sequence[str]) -> bool:
    known = frozenset(ids)
    return any(item.id in known for item in page.items)
