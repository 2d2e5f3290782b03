"""Bookmark: how far the walk of `/v1/events` has come, and what a walk may conclude from it. Pure.

The service does not document in which order it lists events (case U6), so a bookmark remembers both ends of the list as
the last complete walk saw them, and a walk continues at the end where news turn up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Final

from pydantic import Field

from consumer.ledger.reading.sync_state import KeptState
from consumer.payments import Cursor

WALK: Final = "events"
"""Under which name the ledger keeps it."""
IDS_MAX: Final = 300
SERVICE_SKEW: Final = timedelta(minutes=2)
"""How far the service's clock may be from ours."""
AHEAD_MAX: Final = timedelta(days=730)
"""How far ahead of our clock the times of events still tell the order of a list: a simulator's clock may be driven on
by two yearly periods. A bookmark is never led beyond our clock, whatever an event shows: where the service's is ahead,
a sweep reads that much more (cases B34, U22)."""


class ListOrder(StrEnum):
    """In which order a list came. Seen on every walk, never assumed."""

    NEWEST_FIRST = "newest_first"
    OLDEST_FIRST = "oldest_first"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Where an interrupted walk goes on: `head_ids` were at the head when it began, `cursor` is the next page.
    `begun_to`: see `Bookmark.begun_to`; None where the list shows no times."""

    head_ids: tuple[str, ...]
    cursor: Cursor
    begun_to: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class PageRef:
    """A page that a walk read: the cursor it was asked for with, the ids on it, and the time of its newest event, if
    any shows one."""

    cursor: Cursor | None
    ids: tuple[str, ...]
    newest_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Bookmark(KeptState, walk=WALK):
    """`head_ids`, `tail_ids`: the ids at both ends; `tail_cursors`: with which the last pages were asked for.

    `walked_at` is when the last complete walk began (None: there was none), `newest_at` the time of the newest event
    it saw. Everything listed up to then has been published.

    A walk that reads the overlap for late events, too, is a sweep (case B34). `swept_at`: when the last one began, by
    our clock; `swept_to`: the same by the service's (see `begun_to`); `sweep_from`: where the next one begins, oldest
    first.
    """

    order: ListOrder = ListOrder.UNKNOWN
    head_ids: tuple[str, ...] = ()
    tail_ids: tuple[str, ...] = ()
    tail_cursors: tuple[Cursor | None, ...] = ()
    newest_at: datetime | None = None
    walked_at: datetime | None = None
    resume: Resume | None = None
    swept_at: datetime | None = None
    swept_to: datetime | None = None
    sweep_from: Annotated[PageRef | None, Field(alias="anchor")] = None

    @property
    def newest_ids(self) -> frozenset[str]:
        """Ids among the newest of the last complete walk; of both ends when the order is not known."""
        match self.order:
            case ListOrder.NEWEST_FIRST:
                return frozenset(self.head_ids)
            case ListOrder.OLDEST_FIRST:
                return frozenset(self.tail_ids)
        return frozenset(self.head_ids + self.tail_ids)

    def begun_to(self, newest_at: datetime | None, now: datetime) -> datetime | None:
        """When a walk that began at `now` began by the service's clock, at the latest that is sure; None without times.

        `newest_at` is the newest event that was listed by then. As much time as has passed since the last sweep has
        passed for the service as well: after a quiet while nothing can be late any more.
        """
        known = [] if newest_at is None else [newest_at]
        if self.swept_at is not None and self.swept_to is not None:
            known.append(min(self.swept_to + (now - self.swept_at), now))
        return max(known, default=None)

    @property
    def seen_to(self) -> datetime | None:
        """From when on, by the service's clock, events may have been late for the last sweep, or else the last walk."""
        if self.swept_to is not None or self.newest_at is None or self.walked_at is None:
            return self.swept_to
        return min(self.newest_at, self.walked_at)

    def sweep_due(self, now: datetime, every_s: float) -> bool:
        """Whether the last sweep began `every_s` ago or more; or later than now, as our clock was set back."""
        return self.swept_at is None or not timedelta(0) <= now - self.swept_at < timedelta(seconds=every_s)

    def believable(self, now: datetime) -> Bookmark:
        """The same, not ahead of our clock; a fresh one where one event that was dated wrongly has led it
        beyond all clocks."""
        led = [self.newest_at, self.swept_to, self.resume.begun_to if self.resume else None]
        if any(at is not None and at > now + AHEAD_MAX for at in led):
            return Bookmark()
        newest_at = min(self.newest_at, now) if self.newest_at else None
        return replace(self, newest_at=newest_at, swept_to=min(self.swept_to, now) if self.swept_to else None)


@dataclass(frozen=True, kw_only=True)
class Place(KeptState):
    """How far one list is known. `head`: the ids on its first page; `grows_there`: it was seen to grow there.
    `cursor`: of the last page read towards the other end; `tail`: the ids that stood there once it was reached.
    `seen_at`: when its newest were last seen, whichever end that is."""

    head: tuple[str, ...] = ()
    grows_there: bool = False
    cursor: Cursor | None = None
    tail: tuple[str, ...] = ()
    seen_at: datetime | None = None


def order_of(times: Sequence[datetime | None]) -> ListOrder:
    """The order that the located times of listed events show; events of one transaction may share or swap theirs."""
    known = [time for time in times if time is not None]
    up = sum(later > earlier for earlier, later in pairwise(known))
    down = sum(later < earlier for earlier, later in pairwise(known))
    if up > 4 * down:
        return ListOrder.OLDEST_FIRST
    if down > 4 * up:
        return ListOrder.NEWEST_FIRST
    return ListOrder.UNKNOWN


def is_gap(bookmark: Bookmark, *, oldest_at: datetime | None, now: datetime, gap_after: timedelta) -> bool:
    """Whether events may have come and gone unseen (case B13): a walk to the end met nothing of the bookmark.

    No gap when the list reaches back to before the last complete walk, or when that walk is so recent that no
    service would have forgotten what came after it.
    """
    if bookmark.walked_at is None or now - bookmark.walked_at < gap_after:
        return False
    return oldest_at is None or oldest_at > bookmark.walked_at - SERVICE_SKEW
