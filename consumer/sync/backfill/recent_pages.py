"""Trail: the last pages of a walk, from which the next one learns where to begin. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime

from consumer.payments import Cursor
from consumer.sync.backfill.bookmark import IDS_MAX, Anchor


@dataclass(frozen=True, kw_only=True)
class Step:
    """A page that was read: with which cursor, the ids on it, and the time of its newest event, if any shows one."""

    cursor: Cursor | None
    ids: tuple[str, ...]
    newest_at: datetime | None


class Trail:
    """The last steps of a walk, `pages_max` and one at most. `pages`: how many a walk of an ended list goes back."""

    def __init__(self, *, pages: int, pages_max: int) -> None:
        self._pages = pages
        self._steps: deque[Step] = deque(maxlen=max(pages, pages_max) + 1)

    def add(self, step: Step) -> None:
        """A page was read; the oldest step may be forgotten."""
        self._steps.append(step)

    def clear(self) -> None:
        """The walk goes on elsewhere."""
        self._steps.clear()

    @property
    def cursors(self) -> tuple[Cursor | None, ...]:
        """With which the last pages were asked for; the first is where the next walk begins."""
        return tuple(step.cursor for step in self._last)

    @property
    def ids(self) -> tuple[str, ...]:
        """The newest ids on these pages."""
        return tuple(one for step in self._last for one in step.ids)[-IDS_MAX:]

    def before(self, time: datetime | None) -> Anchor | None:
        """Where to begin, oldest first, to read every event younger than `time` again; None when no page has any.

        A page earlier than the first that shows one: an inclusive cursor names the first event of its page, and what
        becomes visible later may be listed right before it.
        """
        for number, step in enumerate(self._steps):
            if time is not None and step.newest_at is not None and step.newest_at > time:
                return _anchor(self._steps[max(0, number - 1)])
        return None

    @property
    def end(self) -> Anchor | None:
        """Where the next walk begins that goes back by pages."""
        return _anchor(self._last[0]) if self._steps else None

    @property
    def _last(self) -> list[Step]:
        return list(self._steps)[-self._pages - 1 :]


def _anchor(step: Step) -> Anchor:
    return Anchor(cursor=step.cursor, ids=step.ids)
