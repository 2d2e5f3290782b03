"""Walk: one walk of `/v1/events`, whatever order and cursors the service uses (cases B1-B12, B34, U6).

A walk reads the head of the list, sees the order, and continues where news can be: see `orders`.

Lists are eventually consistent: an event may be listed after newer ones have been. So every walk reads a page again,
and a sweep, which is due every `overlap_every_s`, whatever the last sweep may have come too early for (case B34).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from consumer.events import Locators
from consumer.lists.bookmark import ListOrder, order_of
from consumer.lists.orders import BothEnds, NewestFirst, OldestFirst, OrderedWalk, WalkPage, WalkState
from consumer.lists.pager import CursorRefused, Lister, Pager, ids_of, meets
from consumer.payments import CursorsRefused, EventRecord, Page
from consumer.telemetry.logs import Condition

PASSES: Final[dict[ListOrder, type[OrderedWalk]]] = {
    ListOrder.NEWEST_FIRST: NewestFirst,
    ListOrder.OLDEST_FIRST: OldestFirst,
    ListOrder.UNKNOWN: BothEnds,
}


def cursors_refused(application: str) -> Condition:
    """The condition of walks whose cursors, which the service handed out, it does not take (case B11)."""
    hint = "walks begin again at the head of the list"
    return Condition(CursorsRefused.code, application=application, hint=hint)


@dataclass(kw_only=True)
class Walk(WalkState):
    """One walk. Iterate over `pages()`; the rest says afterwards how it went.

    `since` ends the walk of a newest-first list early.

    `order` as seen, and until the head is read as the last walk saw it, or one that was cut; `gap` whether events may
    have been lost (B13), `refused` how often a cursor was refused and the walk went on without it (B11), `met` whether
    the last complete walk was joined, `begins_at` the time of the oldest listed event, once a newest-first list was
    walked to its end. Raises what the lister raises, CursorLoop (B7), and CursorsRefused.
    """

    lister: Lister
    locators: Locators

    def __post_init__(self) -> None:
        self.bookmark = self.bookmark.believable(self.now)
        cut = self.bookmark.resume
        was_newest_first = cut is not None and cut.begun_to is not None  # no other walk leaves that
        self.order = ListOrder.NEWEST_FIRST if was_newest_first else self.bookmark.order
        self._pager = Pager(self.lister, self.locators, now=self.now, limit=self.policy.limit)

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
        head = await self._pager.page(None)
        self._detect(head)
        async for page in PASSES[self.order](walk=self, pager=self._pager).pages(head):
            yield page

    def _detect(self, head: Page[EventRecord]) -> None:
        """How this list is walked, by its first page: by the events' times; when those say nothing, by where the list
        has grown since the last walk."""
        self.order = by_time = order_of([self._pager.time(item) for item in head.items])
        ids, before = ids_of(head), self.bookmark.head_ids
        grew_at_head = bool(before and ids) and ids[0] not in before and meets(head, before)
        if by_time is ListOrder.UNKNOWN and grew_at_head:
            self.order = ListOrder.NEWEST_FIRST
        elif by_time is ListOrder.OLDEST_FIRST and grew_at_head:
            self.order = ListOrder.UNKNOWN  # the times contradict the list: both ends are walked
        self.timed = by_time is not ListOrder.UNKNOWN
        may_sweep = self.sweeps or self.bookmark.swept_at is None  # the first one is made also in a hurry
        self.sweeping = self.timed and may_sweep and self.bookmark.sweep_due(self.now, self.policy.overlap_every_s)

    def _begin_again(self) -> None:
        """Once more from the head, without any of the cursors that were stored."""
        self.refused += 1
        self.met = False
        self.bookmark = replace(self.bookmark, resume=None, tail_cursors=(), tail_ids=(), sweep_from=None)
        self._pager.begin_again()

    # --- how it went ------------------------------------------------------------------------------------------

    @property
    def pages_read(self) -> int:
        """How many pages were asked for."""
        return self._pager.pages_read

    @property
    def goal_at(self) -> datetime | None:
        """Newest first: with the events of which time the walk ends; None when it goes on to the end of the list."""
        if self.since is not None or self.bookmark.newest_at is None:
            return self.since
        swept_to = self.bookmark.seen_to if self.sweeping else None
        overlap = timedelta(seconds=self.policy.overlap_s)
        return self.bookmark.newest_at if swept_to is None else min(self.bookmark.newest_at, swept_to - overlap)
