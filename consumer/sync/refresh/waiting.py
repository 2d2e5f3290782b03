"""Waiting: what there is to do in each lane in one round. A kind whose list is paged is read singly only as far as no
walk has answered it, until its walk rests or has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from consumer.ledger.tables import ReadRow
from consumer.sync.refresh.list_reads import ListReads
from consumer.sync.refresh.schedule import Lane, Round, lane_of
from consumer.sync.refresh.single_reads import SingleReads

Request = Callable[[Round], Coroutine[Any, Any, None]]


class Waiting:
    """One round over the due reads, oldest first; `most`: how many of them are done singly."""

    def __init__(
        self, due: Sequence[ReadRow], pages: Mapping[Lane, ListReads], singles: SingleReads, *, most: int
    ) -> None:
        self._pages = pages
        self._singles = singles
        self._left = most
        self._walks: dict[Lane, ListReads] = {}  # by the lane of those that are read singly
        self._at_once: dict[Lane, deque[ReadRow]] = {lane: deque() for lane in Lane if lane not in pages}
        self._listed: dict[Lane, deque[ReadRow]] = {lane: deque() for lane in self._at_once}
        for lane, rows in self._at_once.items():
            rows.extend(row for row in due if lane_of(row) is lane)
        for walk in pages.values():
            self._divide(Lane(walk.kind), walk)

    def _divide(self, lane: Lane, walk: ListReads) -> None:
        rows = self._at_once[lane]
        if walk.begin(rows):
            self._walks[lane] = walk
            self._at_once[lane] = deque(row for row in rows if walk.is_unanswered(row))
            self._listed[lane] = deque(row for row in rows if not walk.is_unanswered(row))

    def lanes(self, this: Round) -> Collection[Lane]:
        """In which of them something waits."""
        singly = [lane for lane in self._at_once if self._left > 0 and self._queue(lane, this)]
        return [*(lane for lane, walk in self._pages.items() if walk.is_waiting), *singly]

    def is_taken(self, lane: Lane) -> bool:
        """Whether a page of this lane is being read: the next one begins where it ends."""
        return lane in self._pages and self._pages[lane].is_reading

    def take(self, lane: Lane, this: Round) -> Request:
        """The next request of a lane in which something waits; nobody else makes it."""
        if lane in self._pages:
            return self._pages[lane].read
        self._left -= 1
        return partial(self._singles.do, self._queue(lane, this).popleft())

    def _queue(self, lane: Lane, this: Round) -> deque[ReadRow]:
        """What waits in a lane of single reads, without what a page has answered."""
        is_walking = lane in self._walks and self._walks[lane].is_walking
        for rows in [self._at_once[lane]] if is_walking else [self._at_once[lane], self._listed[lane]]:
            while rows and this.has_answered(rows[0]):
                rows.popleft()
            if rows:
                return rows
        return deque()
