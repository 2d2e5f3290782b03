"""Mark: how far the walk of `/v1/events` has come, and what a walk may conclude from it. Pure.

The service does not document in which order it lists events (case U6), so a mark remembers both ends of the list as
the last complete walk saw them, and a walk continues at the end where news turn up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from consumer.events import parse_time
from consumer.payments import Cursor

IDS_MAX: Final = 300
SKEW: Final = timedelta(minutes=2)


class ListOrder(StrEnum):
    """In which order a list came. Seen on every walk, never assumed."""

    NEWEST_FIRST = "newest_first"
    OLDEST_FIRST = "oldest_first"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Where an interrupted walk goes on: `head_ids` were at the head when it began, `cursor` is the next page."""

    head_ids: tuple[str, ...]
    cursor: Cursor


@dataclass(frozen=True, kw_only=True)
class Mark:
    """`head_ids`, `tail_ids`: the ids at both ends; `tail_cursors`: with which the last pages were asked for.

    `walked_at` is when the last complete walk began (None: there was none), `newest_at` the time of the newest event
    it saw. Everything listed up to then has been published.
    """

    order: ListOrder = ListOrder.UNKNOWN
    head_ids: tuple[str, ...] = ()
    tail_ids: tuple[str, ...] = ()
    tail_cursors: tuple[Cursor | None, ...] = ()
    newest_at: datetime | None = None
    walked_at: datetime | None = None
    resume: Resume | None = None

    @property
    def newest_ids(self) -> frozenset[str]:
        """Ids among the newest of the last complete walk; of both ends when the order is not known."""
        match self.order:
            case ListOrder.NEWEST_FIRST:
                return frozenset(self.head_ids)
            case ListOrder.OLDEST_FIRST:
                return frozenset(self.tail_ids)
        return frozenset(self.head_ids + self.tail_ids)

    def dump(self) -> dict[str, Any]:
        """As JSON, for the ledger."""
        return {
            "order": self.order.value,
            "head_ids": self.head_ids,
            "tail_ids": self.tail_ids,
            "tail_cursors": self.tail_cursors,
            "newest_at": self.newest_at.isoformat() if self.newest_at else None,
            "walked_at": self.walked_at.isoformat() if self.walked_at else None,
            "resume": {"head_ids": self.resume.head_ids, "cursor": self.resume.cursor} if self.resume else None,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any] | None) -> Mark:
        """From JSON; a fresh mark for None and for what another version of this code wrote."""
        if state is None:
            return cls()
        try:
            resume = state["resume"]
            return cls(
                order=ListOrder(state["order"]),
                head_ids=tuple(state["head_ids"]),
                tail_ids=tuple(state["tail_ids"]),
                tail_cursors=tuple(state["tail_cursors"]),
                newest_at=parse_time(state["newest_at"]),
                walked_at=parse_time(state["walked_at"]),
                resume=Resume(head_ids=tuple(resume["head_ids"]), cursor=resume["cursor"]) if resume else None,
            )
        except (KeyError, TypeError, ValueError):
            return cls()


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


def is_gap(mark: Mark, *, oldest_at: datetime | None, now: datetime, gap_after: timedelta) -> bool:
    """Whether events may have come and gone unseen (case B13): a walk to the end met nothing of the mark.

    No gap when the list reaches back to before the last complete walk, or when that walk is so recent that no
    service would have forgotten what came after it.
    """
    if mark.walked_at is None or now - mark.walked_at < gap_after:
        return False
    return oldest_at is None or oldest_at > mark.walked_at - SKEW
