"""Walk: one walk of `/v1/events`, whatever order and cursors the service uses (cases B1-B12, B34, U6).

A walk reads the head of the list, sees the order, and continues where news can be: newest first from the head until
it meets what the last walk saw, oldest first from the stored cursor on. When the order cannot be told, both ends are
walked. What cannot be joined to the last walk is walked from the head to the end.

Lists are eventually consistent: an event may be listed after newer ones have been. So every walk reads a page again,
and a sweep, which is due every `overlap_every_s`, whatever the last sweep may have come too early for (case B34).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from consumer.events import Locators, first, parse_time
from consumer.payments import (
    ApiError,
    AuthenticationError,
    Cursor,
    CursorLoop,
    CursorsRefused,
    EventRecord,
    Page,
    RateLimitError,
    UnexpectedAnswer,
)
from consumer.sync.backfill.bookmark import (
    AHEAD_MAX,
    IDS_MAX,
    SERVICE_SKEW,
    Bookmark,
    ListOrder,
    PageRef,
    Resume,
    is_gap,
    order_of,
)
from consumer.sync.backfill.policy import WalkPolicy
from consumer.sync.backfill.recent_pages import PageRead, RecentPages

PAGES_MAX: Final = 200_000
EMPTY_PAGES_MAX: Final = 10


class EventLister(Protocol):
    """What a walk needs of the API: `consumer.payments` has it, and so have the tests' scripted lists."""

    async def list(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page[EventRecord]:
        """One page; `cursor` is the `next_cursor` of the page before."""
        ...


@dataclass(frozen=True, kw_only=True)
class WalkPage:
    """One page of events. `bookmark` may be stored once this page and all before it are published. The times are
    None where the page shows none; `reached_at` is how far the walk has come."""

    items: tuple[EventRecord, ...]
    bookmark: Bookmark
    oldest_at: datetime | None
    newest_at: datetime | None
    reached_at: datetime | None


class CursorRefused(Exception):
    """The service does not accept a cursor (any more)."""


@dataclass(kw_only=True)
class Walk:
    """One walk. Iterate over `pages()`; the rest says afterwards how it went.

    `since` ends the walk of a newest-first list early, and so does a page with one of `stop_ids`. `sweeps`: whether it
    is to be a sweep, if one is due; the first is made in any case.

    `order` as seen, `gap` whether events may have been lost (B13), `refused` how often a cursor was refused and the
    walk went on without it (B11), `met` whether the last complete walk was joined, `begins_at` the time of the oldest
    listed event, once a newest-first list was walked to its end. Raises what the lister raises, CursorLoop (B7), and
    CursorsRefused.
    """

    lister: EventLister
    locators: Locators
    bookmark: Bookmark
    now: datetime
    policy: WalkPolicy = field(default_factory=WalkPolicy)
    since: datetime | None = None
    stop_ids: frozenset[str] = frozenset()
    sweeps: bool = True
    pages_max: int = PAGES_MAX

    order: ListOrder = ListOrder.UNKNOWN
    gap: bool = False
    refused: int = 0
    met: bool = False
    begins_at: datetime | None = None
    pages_read: int = 0
    _head_ids: tuple[str, ...] = ()
    _newest_at: datetime | None = None
    _oldest_at: datetime | None = None
    _seen_cursors: set[str] = field(default_factory=set)
    _looked: dict[str, Page[EventRecord]] = field(default_factory=dict)
    _tail_found: bool | None = None
    _tail_from: Cursor | None = None
    _jumped: bool = False
    _timed: bool = False
    _sweeping: bool = False
    _empty: int = 0

    def __post_init__(self) -> None:
        self.bookmark = self.bookmark.believable(self.now)

    async def pages(self) -> AsyncGenerator[WalkPage, None]:
        """The pages with possible news, each once it is asked for; complete when it ends by itself."""
        try:
            async for page in self._walk():
                yield page
        except CursorRefused:
            self._begin_again()
            try:
                async for page in self._walk():
                    yield page
            except CursorRefused as error:
                raise CursorsRefused(route="/v1/events") from error

    async def _walk(self) -> AsyncGenerator[WalkPage, None]:
        head = await self._page(None)
        self._head_ids = _ids(head)
        self.order = self._seen_order(head)
        self._sweeping = self._timed and self._is_due()
        # Nothing to join: a list of one page is read already, and newest first the news are here.
        from_tail = self.order is ListOrder.OLDEST_FIRST and head.next_cursor is not None and await self._tail_leads()
        async for page in self._tail() if from_tail else self._from_head(head):
            yield page

    @property
    def goal_at(self) -> datetime | None:
        """Newest first: with the events of which time the walk ends; None when it goes on to the end of the list."""
        if self.since is not None or self.bookmark.newest_at is None:
            return self.since
        swept_to = self.bookmark.seen_to if self._sweeping else None
        return self.bookmark.newest_at if swept_to is None else min(self.bookmark.newest_at, swept_to - self._overlap)

    # --- from the head -----------------------------------------------------------------------------------------

    async def _from_head(self, head: Page[EventRecord]) -> AsyncGenerator[WalkPage, None]:
        """From the head until the bookmark is met, and on to the end when it never is."""
        page = head
        recent = self._recent_pages(None, head)
        beyond = resumed = 0
        while True:
            self._note_meeting(page)
            beyond += self.met
            cursor = page.next_cursor
            if cursor is None:
                self._sweeping |= self._timed and not self._jumped  # all there is was read
                last = self._walk_page(page, self._finished(recent))
                self.begins_at = self._oldest_at if self.order is ListOrder.NEWEST_FIRST else None
                self._judge_gap()
                yield last
                return
            joined = beyond > self.policy.overlap_pages and self._is_swept(page, beyond)
            if joined or self._before_since(page) or _meets(page, tuple(self.stop_ids)):
                if self.order is ListOrder.NEWEST_FIRST:
                    yield self._walk_page(page, self._finished(None))
                    return
                if await self._tail_leads():  # news may be at either end: the other one is still to be walked
                    yield self._walk_page(page, self.bookmark)
                    async for more in self._tail():
                        yield more
                    return
            resume = self.bookmark.resume
            resumed += resume is not None and (resumed > 0 or _meets(page, resume.head_ids))
            if resume is not None and resumed and self._is_covered(page, resume.begun_to, resumed):
                if await self._leads(resume, page):
                    cursor = resume.cursor
                    recent.clear()
                self.bookmark = replace(self.bookmark, resume=None)
            yield self._walk_page(page, self._interrupted(cursor, recent))
            page = await self._page(cursor)
            recent.add(self._read(cursor, page))

    async def _leads(self, resume: Resume, here: Page[EventRecord]) -> bool:
        """Whether the service still takes the cursor where an interrupted walk would have gone on, and it leads on."""
        if str(resume.cursor) in self._seen_cursors:
            return False
        try:
            page = await self._fetched(resume.cursor)
        except CursorRefused:
            self.refused += 1
            return False
        there, now_at = self._times(page), self._times(here)
        if resume.begun_to is not None and there and now_at and max(there) >= min(now_at):
            return False  # the overlap has brought us beyond it
        self._looked[str(resume.cursor)] = page
        self._jumped = True
        return True

    # --- what became visible late ------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        """Whether this walk is to be a sweep; where none has been yet, also if it is in a hurry."""
        may_sweep = self.sweeps or self.bookmark.swept_at is None
        return may_sweep and self.bookmark.sweep_due(self.now, self.policy.overlap_every_s)

    def _is_swept(self, page: Page[EventRecord], beyond: int) -> bool:
        """Whether a walk from the head, `beyond` pages past the bookmark, has read all that may have been late."""
        if self.order is ListOrder.OLDEST_FIRST:
            return False
        return not self._sweeping or self._is_covered(page, self.bookmark.seen_to, beyond)

    def _is_covered(self, page: Page[EventRecord], begun_to: datetime | None, pages: int) -> bool:
        """Newest first: whether the walk that began at `begun_to` saw all events from this page on. Without times only
        pages count, and never more than `overlap_pages_max` of them."""
        if begun_to is None or self.order is not ListOrder.NEWEST_FIRST or pages > self.policy.overlap_pages_max:
            return True
        return all(time <= begun_to - self._overlap for time in self._times(page))

    @property
    def _overlap(self) -> timedelta:
        return timedelta(seconds=self.policy.overlap_s)

    def _begun_to(self) -> datetime | None:
        newest_at = self._newest_at
        if newest_at is not None and self.order is not ListOrder.NEWEST_FIRST:
            newest_at = min(newest_at, self.now)  # it came to the newest last, and some may be younger than the walk
        return self.bookmark.begun_to(newest_at, self.now) if self._timed else None

    def _recent_pages(self, cursor: Cursor | None, page: Page[EventRecord]) -> RecentPages:
        recent = RecentPages(pages=self.policy.overlap_pages, pages_max=self.policy.overlap_pages_max)
        recent.add(self._read(cursor, page))
        return recent

    def _read(self, cursor: Cursor | None, page: Page[EventRecord]) -> PageRead:
        return PageRead(cursor=cursor, ids=_ids(page), newest_at=max(self._times(page), default=None))

    def _next_sweep_from(self, recent: RecentPages, begun_to: datetime | None) -> PageRef | None:
        """Where the next sweep begins: where events are that this walk may have come too early for."""
        if self.order is ListOrder.NEWEST_FIRST or not self._sweeping or begun_to is None:
            return self.bookmark.sweep_from
        return recent.before(begun_to - self._overlap) or recent.end

    # --- from the tail -----------------------------------------------------------------------------------------

    async def _tail_leads(self) -> bool:
        """Whether the stored cursor still leads to where the last walk ended (cases B10, B11). Asked once a walk."""
        if self._tail_found is None:
            self._tail_found = await self._find_tail()
        return self._tail_found

    async def _find_tail(self) -> bool:
        if not self.bookmark.tail_cursors or self.bookmark.walked_at is None:
            return False
        begins = [PageRef(cursor=self.bookmark.tail_cursors[0], ids=self.bookmark.tail_ids)]
        if (
            self._sweeping
            and self.bookmark.sweep_from is not None
            and self.bookmark.sweep_from.cursor != begins[0].cursor
        ):
            begins.insert(0, self.bookmark.sweep_from)
        for begin in begins:
            with suppress(CursorRefused):
                page = await self._fetched(begin.cursor)
                if _meets(page, begin.ids):
                    self._looked[str(begin.cursor)] = page
                    self._tail_from = begin.cursor
                    return True
        if self.order is ListOrder.OLDEST_FIRST:
            self.refused += 1
        return False

    async def _tail(self) -> AsyncGenerator[WalkPage, None]:
        """From the stored cursor to the end; what was read counts at once, as all before it was read earlier."""
        cursor = self._tail_from
        self.met = True
        self._seen_cursors.clear()  # another pass: it may well come to where the head's pass has been
        page = await self._page(cursor)
        recent = self._recent_pages(cursor, page)
        while True:
            if page.next_cursor is None:
                yield self._walk_page(page, self._finished(recent))
                return
            sweep_from = self._next_sweep_from(recent, self.now - SERVICE_SKEW)
            moved = replace(self.bookmark, tail_ids=recent.ids, tail_cursors=recent.cursors, sweep_from=sweep_from)
            yield self._walk_page(page, moved if self.order is ListOrder.OLDEST_FIRST else self.bookmark)
            cursor = page.next_cursor
            page = await self._page(cursor)
            recent.add(self._read(cursor, page))

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
        self._empty = 0 if page.items else self._empty + 1
        if self._empty > EMPTY_PAGES_MAX and page.next_cursor is not None:
            raise UnexpectedAnswer("the list shows empty pages and does not end", pages=self.pages_read)
        return page

    def _begin_again(self) -> None:
        self.refused += 1
        self.bookmark = replace(self.bookmark, resume=None, tail_cursors=(), tail_ids=(), sweep_from=None)
        self._seen_cursors.clear()
        self._looked.clear()
        self._tail_found = False
        self._jumped = False
        self.met = False

    def _seen_order(self, head: Page[EventRecord]) -> ListOrder:
        """By the events' times; when those say nothing, by where the list has grown since the last walk."""
        by_time = order_of([self._time(item) for item in head.items])
        self._timed = by_time is not ListOrder.UNKNOWN
        ids, before = _ids(head), self.bookmark.head_ids
        grew_at_head = bool(before and ids) and ids[0] not in before and _meets(head, before)
        match by_time:
            case ListOrder.UNKNOWN if grew_at_head:
                return ListOrder.NEWEST_FIRST
            case ListOrder.OLDEST_FIRST if grew_at_head:
                return ListOrder.UNKNOWN  # the times contradict the list: both ends are walked
        return by_time

    def _note_meeting(self, page: Page[EventRecord]) -> None:
        if not self.met and self.bookmark.walked_at is not None:
            self.met = _meets(page, tuple(self.bookmark.newest_ids))

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
        self.gap = is_gap(self.bookmark, oldest_at=oldest_at, now=self.now, gap_after=self.policy.gap_after)

    def _walk_page(self, page: Page[EventRecord], bookmark: Bookmark) -> WalkPage:
        times = self._times(page)
        oldest, newest = min(times, default=None), max(times, default=None)
        reached = newest if self.order is ListOrder.OLDEST_FIRST else oldest
        return WalkPage(items=page.items, bookmark=bookmark, oldest_at=oldest, newest_at=newest, reached_at=reached)

    def _times(self, page: Page[EventRecord]) -> list[datetime]:
        return [time for item in page.items if (time := self._time(item)) is not None]

    def _time(self, item: EventRecord) -> datetime | None:
        time = parse_time(first(item.raw, self.locators.time))
        if time is not None:
            # A date that is wrong leads no walk.
            time = time if time <= self.now + AHEAD_MAX else self.now + SERVICE_SKEW
            self._newest_at = max(time, self._newest_at or time)
            self._oldest_at = min(time, self._oldest_at or time)
        return time

    # --- marks -------------------------------------------------------------------------------------------------

    def _interrupted(self, cursor: Cursor, recent: RecentPages) -> Bookmark:
        """The old bookmark, and where this walk would go on. An older interruption is kept: it saves more."""
        if self.bookmark.resume is not None:
            return self.bookmark
        begun_to = self._begun_to() if self.order is ListOrder.NEWEST_FIRST else None
        if self.order is ListOrder.OLDEST_FIRST and self._timed:
            # Near the end of the list, not where this walk is: it may have come too early for what is before it.
            begin = recent.before(self.now - SERVICE_SKEW - self._overlap)
            if begin is not None and begin.cursor is None:
                return self.bookmark
            cursor = begin.cursor if begin is not None and begin.cursor is not None else cursor
        return replace(
            self.bookmark, resume=Resume(head_ids=self._head_ids[:IDS_MAX], cursor=cursor, begun_to=begun_to)
        )

    def _finished(self, recent: RecentPages | None) -> Bookmark:
        """The window is complete. `trail` are the last pages, if the end was reached; else the tail stays known."""
        begun_to = self._begun_to()
        return Bookmark(
            order=self.order,
            head_ids=self._head_ids[:IDS_MAX],
            tail_ids=recent.ids if recent else self.bookmark.tail_ids,
            tail_cursors=recent.cursors if recent else self.bookmark.tail_cursors,
            newest_at=max(filter(None, (self._newest_at, self.bookmark.newest_at)), default=None),
            walked_at=self.now,
            swept_at=self.now if self._sweeping else self.bookmark.swept_at,
            swept_to=begun_to if self._sweeping else self.bookmark.swept_to,
            sweep_from=self._next_sweep_from(recent, begun_to) if recent else self.bookmark.sweep_from,
        )


def _ids(page: Page[EventRecord]) -> tuple[str, ...]:
    return tuple(item.id for item in page.items if item.id is not None)


def _meets(page: Page[EventRecord], ids: Sequence[str]) -> bool:
    known = frozenset(ids)
    return any(item.id in known for item in page.items)
