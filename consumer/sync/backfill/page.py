"""Page: events of a page as the rest of the consumer knows them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from consumer.errors import NotUnderstood
from consumer.events import Delivery, Event, Locators, Source, Trust, build_event
from consumer.payments import EventRecord
from consumer.reason import Reason

LOG = structlog.get_logger()

LISTED: Final = "listed:"
"""How the delivery id of a listed record begins that was kept raw: nobody delivered it."""


@dataclass(frozen=True, kw_only=True)
class ListedEvents:
    """The events of one page, and those in which the locators find no event."""

    events: tuple[Event, ...]
    strange: tuple[Delivery, ...]


def understand(items: Sequence[EventRecord], locators: Locators, *, application: str, now: datetime) -> ListedEvents:
    """Listed records as events. A record that is not understood must not hold up the walk: it is kept raw, as if it
    had been delivered (case U1)."""
    events: list[Event] = []
    strange: list[Delivery] = []
    for item in items:
        try:
            event = build_event(
                item.raw_bytes,
                locators,
                application=application,
                trust=Trust.READ,
                source=Source.BACKFILL,
                received_at=now,
            )
        except Exception as error:  # noqa: BLE001 - one odd record keeps no other from being read
            if not isinstance(error, NotUnderstood):
                LOG.error("a listed event broke its reading", application=application, error=type(error).__name__)  # noqa: TRY400 - its text may hold the sender's words
            strange.append(_kept(application, item.raw_bytes, now, Reason.NOT_UNDERSTOOD))
        else:
            events.append(event)
    return ListedEvents(events=tuple(events), strange=tuple(strange))


def too_large(refused: Sequence[Event], now: datetime) -> list[Delivery]:
    """Listed events that the topic does not take: kept raw, by their ids, for whoever makes room for them."""
    return [_kept(one.application, one.raw, now, Reason.TOO_LARGE, event_id=one.id) for one in refused]


def _kept(application: str, raw: bytes, now: datetime, problem: Reason, *, event_id: str | None = None) -> Delivery:
    name = LISTED + hashlib.sha256(raw).hexdigest()[:40]
    return Delivery(application=application, id=name, raw=raw, received_at=now, event_id=event_id, problem=problem)


class Recent:
    """The ids published a short while ago, which the workers may not have recorded yet. Bounded."""

    def __init__(self, capacity: int = 50_000) -> None:
        self._capacity = capacity
        self._ids: dict[str, None] = {}

    def add(self, ids: Sequence[str]) -> None:
        """Remember these; the oldest are forgotten."""
        for one in ids:
            self._ids.pop(one, None)
            self._ids[one] = None
        while len(self._ids) > self._capacity:
            del self._ids[next(iter(self._ids))]

    def __contains__(self, one: object) -> bool:
        return one in self._ids

    def __len__(self) -> int:
        return len(self._ids)
