"""Page: the events of one page as the rest of the consumer knows them. Pure."""

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
    """The events of one page, and the records in which the locators find no event."""

    events: tuple[Event, ...]
    strange: tuple[Delivery, ...]


def understand(items: Sequence[EventRecord], locators: Locators, *, application: str, now: datetime) -> ListedEvents:
    """Listed records as events. A record that is not understood must not hold up the walk: it is kept raw, as if it
    had been delivered (case U1)."""
    found: list[Event] = []
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
                LOG.error("listed_event_broke_its_reading", application=application, error=type(error).__name__)  # noqa: TRY400 - its text may hold the sender's words
            strange.append(kept_raw(application, item.raw_bytes, now, Reason.NOT_UNDERSTOOD))
        else:
            found.append(event)
    return ListedEvents(events=tuple(found), strange=tuple(strange))


def kept_raw(application: str, raw: bytes, now: datetime, problem: Reason, *, event_id: str | None = None) -> Delivery:
    """A listed record as if it had been delivered, with why it can only be kept."""
    name = LISTED + hashlib.sha256(raw).hexdigest()[:40]
    return Delivery(application=application, id=name, raw=raw, received_at=now, event_id=event_id, problem=problem)
