"""Page: the events of one page as the rest of the consumer knows them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from consumer.events import Delivery, Event
from consumer.payments import EventRecord
from consumer.reason import Reason
from consumer.sync.application import Application
from consumer.sync.provenance import as_read

LISTED: Final = "listed:"
"""How the delivery id of a listed record begins that was kept raw: nobody delivered it."""


@dataclass(frozen=True, kw_only=True)
class ListedEvents:
    """The events of one page, and the records in which the locators find no event."""

    events: tuple[Event, ...]
    strange: tuple[Delivery, ...]


def understand(items: Sequence[EventRecord], app: Application) -> ListedEvents:
    """Listed records as events. A record that is not understood must not hold up the walk: it is kept raw, as if it
    had been delivered (case U1)."""
    found: list[Event] = []
    strange: list[Delivery] = []
    now, broke = app.clock.now(), "listed_event_broke_its_reading"
    for item in items:
        event = as_read(item.raw_bytes, app.locators, application=app.name, received_at=now, broke=broke)
        if event is None:
            strange.append(kept_raw(app.name, item.raw_bytes, now, Reason.NOT_UNDERSTOOD))
        else:
            found.append(event)
    return ListedEvents(events=tuple(found), strange=tuple(strange))


def kept_raw(application: str, raw: bytes, now: datetime, problem: Reason, *, event_id: str | None = None) -> Delivery:
    """A listed record as if it had been delivered, with why it can only be kept."""
    name = LISTED + hashlib.sha256(raw).hexdigest()[:40]
    return Delivery(application=application, id=name, raw=raw, received_at=now, event_id=event_id, problem=problem)
