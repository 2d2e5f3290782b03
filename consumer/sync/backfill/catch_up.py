"""Catching up: a walk with confirm's priority, which settles at a hundred events a read what many hints announced."""

from __future__ import annotations

from contextlib import aclosing
from enum import StrEnum
from typing import Final

from consumer.lists.bookmark import ListOrder
from consumer.payments import Priority
from consumer.sync.backfill.report import BackfillOptions
from consumer.sync.backfill.stage import Backfill

LOOK_READS_MAX: Final = 20
WALK_READS_MAX: Final = 50
"""So many reads a walk for hints makes, whose list may show each event in brief: hints that come meanwhile wait for
it."""


class Coverage(StrEnum):
    """How much of the list a walk for hints has seen: all of it up to now, the newest part, or neither."""

    ALL = "all"
    NEWEST = "newest"
    NOTHING = "nothing"


class CatchUp:
    """Walks the list up to now for the hints of one application, beside `backfill`, whose loop it takes no turn of."""

    def __init__(self, backfill: Backfill) -> None:
        self._lister = backfill.app.client.with_priority(Priority.CONFIRM).events
        self._backfill = backfill
        self._looked_at: frozenset[str] = frozenset()

    async def walk(self) -> Coverage:
        """Walk from the bookmark on. ALL when everything listed up to now has been walked.

        NEWEST when only the newest part was, because a long walk is under way, or because this one turned out long: the
        loop goes on with it, less urgently. NOTHING when such a walk has yet to come to the newest part, which lies at
        the list's far end. Raises as `Backfill.once`.
        """
        under_way = self._backfill.under_way
        if self._backfill.walking.locked():
            if under_way is not None and under_way.order is not ListOrder.NEWEST_FIRST:
                return Coverage.NOTHING  # the newest are beyond where it is: to look for them would be to walk it twice
            return await self._look_at_newest()
        async with self._backfill.walking:
            # Hints are in a hurry: the loop looks for what is listed late.
            begun = await self._backfill.start.begin(BackfillOptions(), self._lister, sweeps=False)
            if await self._backfill.read(begun, reads_max=WALK_READS_MAX):
                await self._backfill.conclude(begun)
                return Coverage.ALL
        self._backfill.wake.set()
        return Coverage.NEWEST if begun.walk.order is ListOrder.NEWEST_FIRST else Coverage.NOTHING

    async def _look_at_newest(self) -> Coverage:
        """Look at what came to a newest-first list since the walk under way began. The bookmark stays."""
        start = self._backfill.start
        bookmark = await start.bookmark()
        known = frozenset(bookmark.resume.head_ids if bookmark.resume else bookmark.head_ids) | self._looked_at
        begun = await start.begin_look(self._lister, known)
        head, gets_further = list[str](), False
        try:
            async with aclosing(begun.walk.pages()) as pages:
                async for page in pages:
                    if begun.walk.order is not ListOrder.NEWEST_FIRST:
                        return Coverage.NOTHING
                    await self._backfill.missing.take(page, begun)
                    head = head or [item.id for item in page.items if item.id]
                    if begun.walk.pages_read + begun.reads >= LOOK_READS_MAX:
                        # More news than a look may take: the next one begins at the head again. What was read singly
                        # costs it no read, so it gets further than this one; of a full list it would see the same.
                        gets_further = begun.reads > 0
                        break
        finally:
            self._backfill.say_refused(begun.walk, counts=True)
        if begun.failures:
            raise begun.failures[0]
        if not gets_further:
            self._looked_at = frozenset(head)
        return Coverage.NEWEST
