"""RecentPages: the last pages of a walk, from which the next one learns where to begin. Pure."""

from __future__ import annotations

from collections import deque
from datetime import datetime

from consumer.lists.bookmark import IDS_MAX, PageRef
from consumer.payments import Cursor


class RecentPages:
    """The last steps of a walk, `pages_max` and one at most. `pages`: how many a walk of an ended list goes back."""

    def __init__(self, *, pages: int, pages_max: int) -> None:
        self._pages = pages
        self._reads: deque[PageRef] = deque(maxlen=max(pages, pages_max) + 1)
        self._forgotten: datetime | None = None

    def add(self, read: PageRef) -> None:
        """A page was read; the oldest step may be forgotten."""
        if len(self._reads) == self._reads.maxlen:
            self._forgotten = max(filter(None, (self._forgotten, self._reads[0].newest_at)), default=None)
        self._reads.append(read)

    def clear(self) -> None:
        """The walk goes on elsewhere."""
        self._reads.clear()
        self._forgotten = None

    @property
    def cursors(self) -> tuple[Cursor | None, ...]:
        """With which the last pages were asked for; the first is where the next walk begins."""
        return tuple(read.cursor for read in self._last)

    @property
    def ids(self) -> tuple[str, ...]:
        """The newest ids on these pages."""
        return tuple(one for read in self._last for one in read.ids)[-IDS_MAX:]

    def before(self, time: datetime | None) -> PageRef | None:
        """Where to begin, oldest first, to read every event younger than `time` again; None when no page has any.

        A page earlier than the first that shows one: an inclusive cursor names the first event of its page, and what
        becomes visible later may be listed right before it.
        """
        for number, read in enumerate(self._reads):
            if time is not None and read.newest_at is not None and read.newest_at > time:
                return self._reads[max(0, number - 1)]
        return None

    def has_forgotten(self, time: datetime) -> bool:
        """Whether an event younger than `time` was on a page that is forgotten."""
        return self._forgotten is not None and self._forgotten > time

    @property
    def end(self) -> PageRef | None:
        """Where the next walk begins that goes back by pages."""
        return self._last[0] if self._reads else None

    @property
    def _last(self) -> list[PageRef]:
        return list(self._reads)[-self._pages - 1 :]
