"""Sightings: what the service shows as its newest and the ledger lacks, and since when. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from consumer.events import parse_time
from consumer.payments import Cursor

LATE: Final = timedelta(minutes=5)
FORGOTTEN_AFTER: Final = timedelta(days=7)
MISSING_MAX: Final = 500
SHOWN: Final = 3

Kind = Literal["event", "order"]


@dataclass(frozen=True, kw_only=True)
class Sightings:
    """Things are named `event:ID` and `order:ID`, an order by the merchant's id.

    `missing`: since when each has been seen there and not here, by our own clock: the service need not show times.
    `history`: what was not here at the first look, since it happened before we came; None before that look.
    `cursors`: where the newest part of a list is that begins with its oldest.
    """

    missing: Mapping[str, datetime] = field(default_factory=dict)
    history: frozenset[str] | None = None
    cursors: Mapping[str, Cursor | None] = field(default_factory=dict)

    def late(self, now: datetime) -> Late | None:
        """What is later than any healthy path takes; None where nothing is."""
        late = {name: since for name, since in self.missing.items() if now - since >= LATE}
        if not late:
            return None
        oldest_first = sorted(late, key=late.__getitem__)
        orders = [name.partition(":")[2] for name in oldest_first if name.startswith("order:")]
        events = [name.partition(":")[2] for name in oldest_first if name.startswith("event:")]
        return Late(len(orders), len(events), late[oldest_first[0]], (*orders, *events)[:SHOWN])

    def dump(self) -> dict[str, Any]:
        """As JSON, for the ledger."""
        return {
            "missing": {name: since.isoformat() for name, since in self.missing.items()},
            "history": None if self.history is None else sorted(self.history),
            "cursors": dict(self.cursors),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any] | None) -> Sightings:
        """From JSON; a fresh one for None."""
        state = state or {}
        found = {name: parse_time(since) for name, since in (state.get("missing") or {}).items()}
        history = state.get("history")
        return cls(
            missing={name: since for name, since in found.items() if since is not None},
            history=None if history is None else frozenset(history),
            cursors=dict(state.get("cursors") or {}),
        )


@dataclass(frozen=True)
class Late:
    """So many paid orders and events, the oldest seen at `since`; a few of them by their ids, oldest first."""

    orders: int
    events: int
    since: datetime
    ids: tuple[str, ...]


def after(
    before: Sightings, listed: Sequence[str], here: Container[str], now: datetime, cursors: Mapping[str, Cursor | None]
) -> Sightings:
    """What is known after a look that showed these. What was missing is asked for until it is here, also when newer
    ones have pushed it off the page."""
    absent = [name for name in dict.fromkeys((*before.missing, *listed)) if name not in here]
    if before.history is None:
        return Sightings(history=frozenset(absent), cursors=cursors)
    missing = {name: before.missing.get(name, now) for name in absent if name not in before.history}
    kept = [name for name, since in missing.items() if now - since < FORGOTTEN_AFTER][:MISSING_MAX]
    return Sightings(
        missing={name: missing[name] for name in kept},
        history=before.history.intersection(listed).intersection(absent),
        cursors=cursors,
    )
