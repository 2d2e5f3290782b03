"""Timers: what is due when. A timer is only a reminder; who it reminds looks at the record before acting."""

from __future__ import annotations

import heapq
from datetime import datetime


class Timers:
    """A heap of (time, order of setting, kind, record id)."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, str, str]] = []
        self._set: set[tuple[datetime, str, str]] = set()
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when: datetime, kind: str, record_id: str) -> None:
        """Remind at `when`; setting the same timer twice is one timer."""
        key = (when, kind, record_id)
        if key in self._set:
            return
        self._set.add(key)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, kind, record_id))

    def next_due(self) -> datetime | None:
        """The earliest time, or None."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: datetime) -> tuple[datetime, str, str] | None:
        """The earliest timer that is due at `now`, removed."""
        if not self._heap or self._heap[0][0] > now:
            return None
        when, _, kind, record_id = heapq.heappop(self._heap)
        self._set.discard((when, kind, record_id))
        return when, kind, record_id
