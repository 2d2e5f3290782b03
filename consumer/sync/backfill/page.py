"""Page: the events of one page as the rest of the consumer knows them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import structlog

from consumer.events import UNKNOWN_TYPE, Delivery, Envelope, Event
from consumer.payments import EventRecord, PaymentsError, Priority, ServiceUnreachable
from consumer.reason import Reason
from consumer.sync.api import held_up_s, refuses
from consumer.sync.application import Application
from consumer.sync.backfill.unread import REFUSED_FOR, Unread
from consumer.sync.provenance import as_read

LOG = structlog.get_logger()

LISTED: Final = "listed:"
"""How the delivery id of a listed record begins that was kept raw: nobody delivered it."""

VAIN_MAX: Final = 50
FAILED_MAX: Final = 3


@dataclass(frozen=True, kw_only=True)
class ListedEvents:
    """The events of one page, and the records in which the locators find no event."""

    events: tuple[Event, ...]
    strange: tuple[Delivery, ...]

    def after(self, reads: Reads) -> ListedEvents:
        """The same without those that were left, and the others as they were read singly."""
        return replace(self, events=tuple(reads.applied(self.events)))


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


@dataclass(kw_only=True)
class Reads:
    """What single reads made of listed events: `whole`, by id, as they were read; `left`: those of which nothing is
    decided yet; `again`: which of these a later walk asks for, with how many reads of each failed now; `failure`: why,
    where one failed; `held_up`: what holds all calls up, where that ended them. `asked`: how many were asked for."""

    whole: dict[str, Event] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    again: dict[str, int] = field(default_factory=dict)
    failure: PaymentsError | None = None
    held_up: PaymentsError | None = None
    asked: int = 0

    def check(self) -> None:
        """Raise the PaymentsError that holds all calls up, once what was read until then is settled."""
        if self.held_up is not None:
            raise self.held_up

    def applied(self, listed: Sequence[Event]) -> list[Event]:
        """Listed events without those that were left, and the others as they were read."""
        return [self.whole.get(event.id, event) for event in listed if event.id not in self.left]


class WholeEvents:
    """Reads what a list shows too little of by its id, before anything is decided (case B22).

    One that cannot be read is left for a later walk, which has it among the `unread`, and keeps no other waiting. When
    patience is over it is taken as it is listed, unless a hint announced it: `confirm` is patient for that. Where reads
    say no more of what is wanted, which VAIN_MAX of a type in a row tell, one of it a page is still read, and those of
    hints.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._of_hints = app.client.with_priority(Priority.CONFIRM).events
        self._others = app.client.with_priority(Priority.BACKFILL).events
        self._in_vain: Counter[str] = Counter()

    async def read(self, listed: Sequence[Event], announced: Container[str], unread: Unread) -> Reads:
        """These as single reads show them; `announced` are in a hurry. Where FAILED_MAX in a row are not answered, or
        all calls are held up, the others are left as well: those that failed least come first."""
        reads, tried, in_a_row = Reads(), set[str](), 0
        for event in sorted(filter(is_thin, listed), key=lambda event: unread.failures(event.id)):
            is_urgent = event.id in announced
            if not is_urgent and event.type in tried and self._in_vain[event.type] >= VAIN_MAX:
                continue
            if in_a_row >= FAILED_MAX or reads.held_up is not None:
                reads.left.add(event.id)
                reads.again[event.id] = 0
                continue
            tried.add(event.type)
            reads.asked += 1
            try:
                whole = await self._read(event, is_urgent=is_urgent)
            except PaymentsError as error:
                is_given_up = not _holds_all_up(error) and self._is_given_up(event, error, unread)
                if is_given_up and not is_urgent:
                    LOG.warning("event_taken_as_listed", application=event.application, event_id=event.id)
                    continue
                reads.left.add(event.id)
                if _holds_all_up(error):
                    reads.held_up = error
                elif not is_given_up:
                    in_a_row += not refuses(error)
                    reads.failure = reads.failure or error
                    reads.again[event.id] = 1
                continue
            in_a_row = 0
            if whole is not None:
                self._in_vain[event.type] = self._in_vain[event.type] + 1 if is_thin(whole) else 0
                reads.whole[event.id] = whole
            elif is_urgent:
                reads.left.add(event.id)
        return reads

    async def _read(self, event: Event, *, is_urgent: bool) -> Event | None:
        """None where the answer is not this event, or not understood."""
        record = await (self._of_hints if is_urgent else self._others).retrieve(event.id)
        name, broke = self._app.name, "event_read_singly_broke_its_reading"
        whole = as_read(
            record.raw_bytes, self._app.locators, application=name, received_at=event.received_at, broke=broke
        )
        return whole if whole is not None and whole.id == event.id else None

    def _is_given_up(self, event: Event, error: PaymentsError, unread: Unread) -> bool:
        """Whether patience is over with one that failed. One that is old is not refused because it is too new."""
        at, waiting = event.occurred_at, unread.events.get(event.id)
        is_old = at is not None and self._app.service_time() - at >= REFUSED_FOR
        is_over = waiting is not None and waiting.is_given_up(error, self._app.clock.now())
        return is_over or (is_old and refuses(error))


def _holds_all_up(error: PaymentsError) -> bool:
    """Whether it says nothing of the event. The list was shown just now: a request that was sent and not answered
    does."""
    return held_up_s(error) is not None and not (isinstance(error, ServiceUnreachable) and error.sent)


def is_thin(found: Event | Envelope) -> bool:
    """Whether it does not say what it is, or whose: of the service's own types each is of an object."""
    is_somebodys = found.type.startswith(("order.", "checkout.session.", "subscription."))
    names = (found.order_id, found.subscription_id, found.object_id)
    return found.type == UNKNOWN_TYPE or (is_somebodys and not any(names))
