"""Unread: events that a walk met in brief and could not read (case B22). The bookmark goes on past them: they are kept
in the ledger, and each walk of the loop, or of the command, ends with asking for them again. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from consumer.events import Event, parse_json
from consumer.ledger.reading.sync_state import KeptState
from consumer.payments import EventRecord, PaymentsError
from consumer.sync.api import PATIENCE_S, refuses

REFUSED_FOR: Final = timedelta(seconds=PATIENCE_S)
UNANSWERED_FOR: Final = timedelta(days=1)
TRIES_MIN: Final = 5
"""Patience is over after so many tries at the earliest: a time in which nobody walks uses up none."""
UNREAD_MAX: Final = 500
UNREAD_MAX_BYTES: Final = 1024 * 1024
"""So many wait at most, and so much of what the list says of them: what is more keeps the bookmark before it."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """One of them: `listed` is its entry in the list, `since` when it was met, `failures` how often a read of it
    failed. `is_refused`: it waits for the topic to take records as large as it again, not for a read."""

    listed: str
    since: datetime
    failures: int = 0
    is_refused: bool = False

    def is_given_up(self, error: PaymentsError, now: datetime) -> bool:
        """Whether this failure is one too many. A refusal is an answer, which may come too early for a while; any other
        failure says nothing of the event."""
        patience = REFUSED_FOR if refuses(error) else UNANSWERED_FOR
        return self.failures + 1 >= TRIES_MIN and now - self.since >= patience


@dataclass(frozen=True, kw_only=True)
class Unread(KeptState, walk="unread"):
    """By the events' ids; those that were met last are at the end."""

    events: Mapping[str, Waiting] = field(default_factory=dict)

    def items(self, most: int) -> Sequence[EventRecord]:
        """As the list showed them: the first so many."""
        listed = [one.listed.encode() for one in islice(self.events.values(), most)]
        return [EventRecord.read(parse_json(raw, tolerant=True), raw) for raw in listed]

    @property
    def is_overfull(self) -> bool:
        """Whether these are more than may wait."""
        size = sum(len(one.listed) for one in self.events.values())
        return len(self.events) > UNREAD_MAX or size > UNREAD_MAX_BYTES

    def failures(self, event_id: str) -> int:
        """How often a read of it failed."""
        return self.events[event_id].failures if event_id in self.events else 0

    @property
    def oldest(self) -> Waiting | None:
        """Which waits for longest."""
        return min(self.events.values(), key=lambda one: one.since, default=None)

    def after(
        self, listed: Sequence[Event], again: Mapping[str, int], now: datetime, *, refused: Container[str] = ()
    ) -> Unread:
        """After a page that lists these; `again`: which of them wait on, with how many reads of each failed now;
        `refused`: which of those the topic does not take for now."""
        met = {event.id: event for event in listed}
        found = {one: waiting for one, waiting in self.events.items() if one not in met}
        for event_id, failures in again.items():
            waiting = self.events.get(event_id) or Waiting(listed=met[event_id].raw.decode(), since=now)
            found[event_id] = replace(waiting, failures=waiting.failures + failures, is_refused=event_id in refused)
        return self if found == self.events else Unread(events=found)
