"""Page: the events of one page as the rest of the consumer knows them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from consumer.events import UNKNOWN_TYPE, Delivery, Event
from consumer.payments import EventRecord, PaymentsError, Priority
from consumer.reason import Reason
from consumer.sync.api import held_up_s, shown
from consumer.sync.application import Application
from consumer.sync.provenance import as_read

LISTED: Final = "listed:"
"""How the delivery id of a listed record begins that was kept raw: nobody delivered it."""

VAIN_MAX: Final = 5
FAILED_MAX: Final = 3


@dataclass(frozen=True, kw_only=True)
class ListedEvents:
    """The events of one page, and the records in which the locators find no event."""

    events: tuple[Event, ...]
    strange: tuple[Delivery, ...]

    def with_whole(self, whole: Mapping[str, Event]) -> ListedEvents:
        """The same with these, by id, as they were read singly."""
        return replace(self, events=tuple(whole.get(event.id, event) for event in self.events))


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


class WholeEvents:
    """Reads what a list shows too little of by its id, before anything is decided (case B22).

    Where single reads show no more than the list, which VAIN_MAX in a row tell, one a page is still tried. One that
    fails by itself cuts a walk FAILED_MAX times, and is then taken as it is listed: it keeps no other waiting.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._of_hints = app.client.with_priority(Priority.CONFIRM).events
        self._others = app.client.with_priority(Priority.BACKFILL).events
        self._in_vain = 0
        self._failed: Counter[str] = Counter()
        self._found: dict[str, Event] = {}  # of a page that was cut: it goes on there

    async def read(self, listed: Sequence[Event], announced: Container[str]) -> Mapping[str, Event]:
        """Those that say more when read singly, by id; `announced` are in a hurry. Raises PaymentsError."""
        thin = [event for event in listed if _is_thin(event)]
        found = self._found = {event.id: self._found[event.id] for event in thin if event.id in self._found}
        for number, event in enumerate(one for one in thin if one.id not in found):
            if number and self._in_vain >= VAIN_MAX:
                break
            whole = await self._read(event, is_urgent=event.id in announced)
            is_vain = whole is None or whole.id != event.id or _is_thin(whole)
            self._in_vain = self._in_vain + 1 if is_vain else 0
            if whole is not None and not is_vain:
                found[event.id] = whole
        self._found = {}
        return found

    async def _read(self, event: Event, *, is_urgent: bool) -> Event | None:
        reader = self._of_hints if is_urgent else self._others
        try:
            record = await shown(reader.retrieve(event.id))
        except PaymentsError as error:
            self._failed[event.id] += held_up_s(error) is None
            if self._failed[event.id] < FAILED_MAX:
                raise
            record = None
        del self._failed[event.id]
        if record is None:
            return None
        name, broke = self._app.name, "event_read_singly_broke_its_reading"
        return as_read(
            record.raw_bytes, self._app.locators, application=name, received_at=event.received_at, broke=broke
        )


def _is_thin(event: Event) -> bool:
    """Whether it does not say what it is, or whose: of the service's own types each is of an object."""
    is_somebodys = event.type.startswith(("order.", "checkout.session.", "subscription."))
    names = (event.order_id, event.subscription_id, event.object_id)
    return event.type == UNKNOWN_TYPE or (is_somebodys and not any(names))
