"""The orders in which a list may come, and how each is walked: newest first, oldest first, or both ends.

What all have in common is `OrderedWalk`: from the head on, page by page, until the last walk is joined or the list
ends. Newest first the news are there. Oldest first they are at the tail, and the stored cursor leads to it. Where no
order can be told both ends are walked. What cannot be joined to the last walk is walked from the head to the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from consumer.lists.bookmark import IDS_MAX, SERVICE_SKEW, Bookmark, ListOrder, PageRef, Resume, is_gap
from consumer.lists.pager import CursorRefused, Pager, ids_of, meets
from consumer.lists.policy import WalkPolicy
from consumer.lists.recent_pages import RecentPages
from consumer.payments import Cursor, EventRecord, Page


@dataclass(frozen=True, kw_only=True)
class WalkPage:
    """One page of events, with those times of theirs that it shows. `bookmark` may be stored once this page and all
    before it are published."""

    items: tuple[EventRecord, ...]
    bookmark: Bookmark
    times: tuple[datetime, ...]


Pages = AsyncGenerator[WalkPage, None]


@dataclass(kw_only=True)
class WalkState:
    """What a walk is asked for, and what it has come to know; see Walk. `sweeps`: it looks for what is listed late: it
    reads pages again, and is a sweep where one is due (the first is made in any case); `timed`: the events show times;
    `sweeping`: it is a sweep (B34)."""

    bookmark: Bookmark
    now: datetime
    policy: WalkPolicy = field(default_factory=WalkPolicy)
    since: datetime | None = None
    sweeps: bool = True
    order: ListOrder = ListOrder.UNKNOWN
    timed: bool = False
    sweeping: bool = False
    met: bool = False
    gap: bool = False
    refused: int = 0
    begins_at: datetime | None = None


@dataclass(kw_only=True)
class OrderedWalk(ABC):
    """One pass of a walk over a list in one order."""

    walk: WalkState
    pager: Pager
    _head_ids: tuple[str, ...] = ()
    _resumed: int = 0

    async def pages(self, head: Page[EventRecord]) -> Pages:
        """The pages with possible news; complete when it ends by itself."""
        self._head_ids = ids_of(head)[:IDS_MAX]
        async for page in self._from_head(head):
            yield page

    async def _from_head(self, head: Page[EventRecord]) -> Pages:
        """From the head until the bookmark is met, and on to the end when it never is."""
        page, beyond = head, 0
        recent = self._recent_pages(None, head)
        while True:
            self.walk.met = self.walk.met or self._meets_last(page)
            beyond += self.walk.met
            if page.next_cursor is None:
                yield self._walk_page(page, self._at_end(recent))
                return
            if await self._is_joined(page, beyond):
                yield self._walk_page(page, self._joined())
                return
            cursor = await self._go_on_from(page, page.next_cursor, recent)
            yield self._walk_page(page, self._interrupted(cursor, recent))
            page = await self.pager.page(cursor)
            recent.add(self.pager.read(cursor, page))

    # --- what the orders differ in ------------------------------------------------------------------------------

    async def _is_joined(self, page: Page[EventRecord], beyond: int) -> bool:  # noqa: ARG002 - oldest first the news are at the end
        """Whether a pass from the head, `beyond` pages past the bookmark, need not go on."""
        return False

    @abstractmethod
    def _interrupted(self, cursor: Cursor, recent: RecentPages) -> Bookmark:
        """What is stored should this pass be cut now."""

    def _joined(self) -> Bookmark:
        return self.walk.bookmark

    def _begun_to(self) -> datetime | None:
        """When this walk began, by the service's clock."""
        return self.walk.bookmark.begun_to(self.pager.newest_at, self.walk.now) if self.walk.timed else None

    def _is_covered(self, page: Page[EventRecord], begun_to: datetime | None, pages: int) -> bool:
        """Whether the walk that began at `begun_to` saw all events from this page on, newest first. Without times only
        pages count, and never more than `overlap_pages_max` of them."""
        if begun_to is None or pages > self.walk.policy.overlap_pages_max:
            return True
        return all(time <= begun_to - self.overlap for time in self.pager.times(page))

    # --- going on where an interrupted walk was cut -------------------------------------------------------------

    async def _go_on_from(self, page: Page[EventRecord], cursor: Cursor, recent: RecentPages) -> Cursor:
        """The next cursor: once this pass meets where an interrupted one began, the one where that would go on."""
        resume = self.walk.bookmark.resume
        self._resumed += resume is not None and (self._resumed > 0 or meets(page, resume.head_ids))
        if resume is None or not self._resumed or not self._is_covered(page, resume.begun_to, self._resumed):
            return cursor
        if await self._leads(resume, page):
            cursor = resume.cursor
            recent.clear()
        self.walk.bookmark = replace(self.walk.bookmark, resume=None)
        return cursor

    async def _leads(self, resume: Resume, here: Page[EventRecord]) -> bool:
        """Whether the service still takes the cursor where an interrupted walk would have gone on, and it leads on."""
        if self.pager.has_walked(resume.cursor):
            return False
        try:
            page = await self.pager.look(resume.cursor)
        except CursorRefused:
            self.walk.refused += 1
            return False
        there, now_at = self.pager.times(page), self.pager.times(here)
        if resume.begun_to is not None and there and now_at and max(there) >= min(now_at):
            return False  # the overlap has brought us beyond it
        self.pager.keep(resume.cursor, page)
        self.pager.has_jumped = True
        return True

    def _cut_at(self, cursor: Cursor, begun_to: datetime | None = None) -> Bookmark:
        """The old bookmark, and where this walk would go on. An older interruption is kept: it saves more."""
        if self.walk.bookmark.resume is not None:
            return self.walk.bookmark
        return replace(self.walk.bookmark, resume=Resume(head_ids=self._head_ids, cursor=cursor, begun_to=begun_to))

    # --- what a pass leaves -------------------------------------------------------------------------------------

    def _at_end(self, recent: RecentPages) -> Bookmark:
        """The list has ended, and nothing was joined: whether something may have been lost between (case B13)."""
        self.walk.sweeping |= self.walk.timed and not self.pager.has_jumped  # all there is was read
        if not self.walk.met:
            # Times that do not even show an order prove nothing about how far back the list reaches.
            oldest_at = None if self.walk.order is ListOrder.UNKNOWN else self.pager.oldest_at
            self.walk.gap = is_gap(
                self.walk.bookmark, oldest_at=oldest_at, now=self.walk.now, gap_after=self.walk.policy.gap_after
            )
        return self._finished(recent)

    def _finished(self, recent: RecentPages | None) -> Bookmark:
        """The window is complete. `recent` are the last pages, if the end was reached; else the tail stays known."""
        begun_to = self._begun_to()
        before = self.walk.bookmark
        return Bookmark(
            order=self.walk.order,
            head_ids=self._head_ids,
            tail_ids=recent.ids if recent else before.tail_ids,
            tail_cursors=recent.cursors if recent else before.tail_cursors,
            newest_at=max(filter(None, (self.pager.newest_at, before.newest_at)), default=None),
            walked_at=self.walk.now,
            swept_at=self.walk.now if self.walk.sweeping else before.swept_at,
            swept_to=begun_to if self.walk.sweeping else before.swept_to,
            sweep_from=self._next_sweep_from(recent, begun_to) if recent else before.sweep_from,
        )

    def _next_sweep_from(self, recent: RecentPages, begun_to: datetime | None) -> PageRef | None:
        """Where the next sweep begins: where events are that this walk may have come too early for."""
        if not self.walk.sweeping or begun_to is None:
            return self.walk.bookmark.sweep_from
        return recent.before(begun_to - self.overlap) or recent.end

    # --- helpers ------------------------------------------------------------------------------------------------

    @property
    def overlap(self) -> timedelta:
        """How late a listed event may become visible."""
        return timedelta(seconds=self.walk.policy.overlap_s)

    def _meets_last(self, page: Page[EventRecord]) -> bool:
        return self.walk.bookmark.walked_at is not None and meets(page, tuple(self.walk.bookmark.newest_ids))

    def _recent_pages(self, cursor: Cursor | None, page: Page[EventRecord]) -> RecentPages:
        recent = RecentPages(pages=self.walk.policy.overlap_pages, pages_max=self.walk.policy.overlap_pages_max)
        recent.add(self.pager.read(cursor, page))
        return recent

    def _walk_page(self, page: Page[EventRecord], bookmark: Bookmark) -> WalkPage:
        return WalkPage(items=page.items, bookmark=bookmark, times=tuple(self.pager.times(page)))


@dataclass(kw_only=True)
class NewestFirst(OrderedWalk):
    """The news are at the head: down to what the last walk saw, and over what may have become visible late."""

    async def _is_joined(self, page: Page[EventRecord], beyond: int) -> bool:
        # No sweep finds what an untimed list shows late, so every walk of one reads pages again.
        again = self.walk.policy.overlap_pages if self.walk.sweeps or not self.walk.timed else 0
        is_beyond = beyond > again
        is_swept = not self.walk.sweeping or self._is_covered(page, self.walk.bookmark.seen_to, beyond)
        return (is_beyond and is_swept) or self._is_before_since(page)

    def _joined(self) -> Bookmark:
        return self._finished(None)

    def _at_end(self, recent: RecentPages) -> Bookmark:
        self.walk.begins_at = self.pager.oldest_at
        return super()._at_end(recent)

    def _interrupted(self, cursor: Cursor, recent: RecentPages) -> Bookmark:  # noqa: ARG002 - where a walk is is where it goes on
        return self._cut_at(cursor, self._begun_to())

    def _next_sweep_from(self, recent: RecentPages, begun_to: datetime | None) -> PageRef | None:  # noqa: ARG002 - it begins at the head
        return self.walk.bookmark.sweep_from

    def _is_before_since(self, page: Page[EventRecord]) -> bool:
        if self.walk.since is None or not page.items:
            return False
        times = [self.pager.time(item) for item in page.items]
        return all(time is not None and time < self.walk.since for time in times)


@dataclass(kw_only=True)
class _WithTail(OrderedWalk):
    """A list at whose end news may be: the stored cursor leads there, unless the service takes it no more."""

    _tail_from: Cursor | None = None
    _tail_leads: bool | None = field(default=None)

    def __post_init__(self) -> None:
        """What a walk of the newest left is of no use here: it passes over what is young."""
        if self.walk.bookmark.resume is not None and self.walk.bookmark.resume.begun_to is not None:
            self.walk.bookmark = replace(self.walk.bookmark, resume=None)

    async def pages(self, head: Page[EventRecord]) -> Pages:
        """See OrderedWalk. What is joined at the head goes on at the tail."""
        async for page in super().pages(head):
            yield page
        if self._tail_leads:
            async for page in self._tail():
                yield page

    async def _find_tail(self) -> bool:
        """Whether the stored cursor still leads to where the last walk ended (cases B10, B11). Asked once a walk."""
        if self._tail_leads is None:
            self._tail_leads = await self._look_for_tail()
        return self._tail_leads

    async def _look_for_tail(self) -> bool:
        last = self.walk.bookmark
        if not last.tail_cursors:
            return False
        end = PageRef(cursor=last.tail_cursors[0], ids=last.tail_ids)
        begins = [end]
        if self.walk.sweeping and last.sweep_from is not None and last.sweep_from.cursor != end.cursor:
            begins = [last.sweep_from, end]
        for begin in begins:
            with suppress(CursorRefused):
                page = await self.pager.look(begin.cursor)
                if meets(page, begin.ids):
                    self.pager.keep(begin.cursor, page)
                    self._tail_from = begin.cursor
                    return True
        return False

    async def _tail(self) -> Pages:
        """From the stored cursor to the end; what was read counts at once, as all before it was read earlier."""
        cursor = self._tail_from
        self.walk.met = True
        self.pager.begin_pass()
        page = await self.pager.page(cursor)
        recent = self._recent_pages(cursor, page)
        while page.next_cursor is not None:
            sweep_from = self._next_sweep_from(recent, self.walk.now - SERVICE_SKEW)
            at = replace(self.walk.bookmark, tail_ids=recent.ids, tail_cursors=recent.cursors, sweep_from=sweep_from)
            yield self._walk_page(page, at)
            cursor = page.next_cursor
            page = await self.pager.page(cursor)
            recent.add(self.pager.read(cursor, page))
        yield self._walk_page(page, self._finished(recent))

    def _interrupted(self, cursor: Cursor, recent: RecentPages) -> Bookmark:
        """Before what is young, not where this walk is: it may have come too early for what is listed there."""
        if self.walk.bookmark.resume is not None or not self.walk.timed:
            return self._cut_at(cursor)
        old = self.walk.now - SERVICE_SKEW - self.overlap
        begin = recent.before(old)
        if begin is None:
            return self.walk.bookmark if recent.has_forgotten(old) else self._cut_at(cursor)
        return self.walk.bookmark if begin.cursor is None else self._cut_at(begin.cursor)


@dataclass(kw_only=True)
class OldestFirst(_WithTail):
    """The news are at the tail: from the stored cursor on, or through the whole list where that leads nowhere."""

    async def _from_head(self, head: Page[EventRecord]) -> Pages:
        """A list of one page is read already."""
        if head.next_cursor is None or not await self._find_tail():
            async for page in super()._from_head(head):
                yield page

    async def _look_for_tail(self) -> bool:
        leads = await super()._look_for_tail()
        if not leads and self.walk.bookmark.tail_cursors:
            self.walk.refused += 1
        return leads


@dataclass(kw_only=True)
class BothEnds(_WithTail):
    """News may be at either end: from the head until the last walk is joined, then from the stored cursor on."""

    async def _is_joined(self, page: Page[EventRecord], beyond: int) -> bool:  # noqa: ARG002 - by ids alone
        return beyond > self.walk.policy.overlap_pages and await self._find_tail()
