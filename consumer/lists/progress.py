"""WalkProgress: how far a walk has come through the times of the list, and how long the rest takes (case B29).

Nothing is said where nothing is known: without times, in no order, or where nobody knows how far back a list goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from consumer.clock import Clock
from consumer.ledger import Database
from consumer.ledger.reading.sync_state import KeptState
from consumer.lists.bookmark import ListOrder
from consumer.lists.orders import WalkPage
from consumer.lists.walk import Walk

WALK: Final = "list_begins"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a walk is. `share` is from 0 to 1 and `eta_s` in seconds, both None while they cannot be told;
    `published` is None where nothing is to be."""

    pages: int
    listed: int
    published: int | None
    share: float | None = None
    eta_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Begins(KeptState, walk=WALK):
    """`at`: when the oldest event happened. Nobody leads here: whoever walks to the end of the list writes it."""

    at: datetime | None = None


class ListStart:
    """When the oldest event of an application's newest-first list happened, as the last walk to its end saw it."""

    def __init__(self, database: Database, application: str) -> None:
        self._database = database
        self._application = application
        self._kept: datetime | None = None

    async def at(self) -> datetime | None:
        """None when no walk has come there yet. Raises LedgerError."""
        async with self._database.reading() as session:
            return (await Begins.of(session, self._application)).at

    async def keep(self, at: datetime | None, now: datetime) -> None:
        """Remember it, if it is known and news. Raises LedgerError."""
        if at is None or at == self._kept:
            return
        async with self._database.transaction() as session:
            await Begins(at=at).keep(session, self._application, now=now)
        self._kept = at


class WalkProgress:
    """How far one walk is. Newest first a walk ends at its `goal_at`, or where the list begins (`begins_at`) if that is
    later; oldest first it ends at the newest event, which it does not know: at the latest when it began."""

    def __init__(self, walk: Walk, clock: Clock, *, begins_at: datetime | None) -> None:
        self._walk = walk
        self._clock = clock
        self._began_s = clock.monotonic()
        self._begins_at = begins_at
        self._from: datetime | None = None

    def progress(self, page: WalkPage, *, listed: int, published: int | None = None) -> Progress:
        """After this page. `eta_s` goes by the pace so far: what the budget leaves is for the caller to add."""
        begins, reached = min(page.times, default=None), max(page.times, default=None)
        if self._walk.order is not ListOrder.OLDEST_FIRST:
            begins, reached = reached, begins
        self._from = self._from or begins
        share = self._share(self._from, reached)
        spent_s = self._clock.monotonic() - self._began_s
        return Progress(
            pages=self._walk.pages_read,
            listed=listed,
            published=published,
            share=share,
            eta_s=spent_s * (1 - share) / share if share is not None and share > 0.01 else None,
        )

    def _share(self, begins: datetime | None, reached: datetime | None) -> float | None:
        if begins is None or reached is None or self._walk.order is ListOrder.UNKNOWN:
            return None
        way, whole = reached - begins, self._walk.now - begins
        if self._walk.order is ListOrder.NEWEST_FIRST:
            goal_at = self._walk.goal_at
            goal = max((one for one in (goal_at, self._begins_at) if one is not None), default=None)
            if goal is None or (goal != goal_at and reached < goal):
                return None  # the list goes back further than it did: nobody knows how far
            way, whole = -way, begins - goal
        return min(1.0, max(0.0, way / whole)) if whole.total_seconds() > 0 else None
