"""Page: the events of one page as the rest of the consumer knows them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, TypeVar

import structlog

from consumer.events import UNKNOWN_TYPE, Delivery, Envelope, Event
from consumer.payments import EventRecord, PaymentsError, Priority, ServiceUnreachable
from consumer.reason import Reason
from consumer.sync.api import PATIENCE_S, held_up_s, refuses
from consumer.sync.application import Application
from consumer.sync.provenance import as_read

LOG = structlog.get_logger()

LISTED: Final = "listed:"
"""How the delivery id of a listed record begins that was kept raw: nobody delivered it."""

VAIN_MAX: Final = 5
THIN_MAX: Final = 50
FAILED_MAX: Final = 3
STEP_MAX_S: Final = 60.0
KEPT_MAX: Final = 500
"""Of the newest so many is known that they could not be read, or what they said when a walk was cut."""
T = TypeVar("T")


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
    """What single reads made of listed events: `whole`, by id, as they were read; `left`: those for a later walk or for
    their hints; `failure`: why the walk is to come back, where it is."""

    whole: dict[str, Event] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    failure: PaymentsError | None = None

    def applied(self, listed: Sequence[Event]) -> list[Event]:
        """Listed events without those that were left, and the others as they were read."""
        return [self.whole.get(event.id, event) for event in listed if event.id not in self.left]


@dataclass(kw_only=True)
class Waiting:
    """One that could not be had: for how long at the last look, which was `at_s`, and how often a read of it failed."""

    at_s: float
    waited_s: float = 0.0
    failures: int = 0


class WholeEvents:
    """Reads what a list shows too little of by its id, before anything is decided (case B22).

    One that cannot be read is left, and keeps no other of its page waiting. When PATIENCE_S of walks are over it is
    taken as it is listed, unless a hint announced it: `confirm` is patient for that. Where reads show just what the
    list does, which VAIN_MAX of a type in a row tell, or say no more of what is wanted, which THIN_MAX tell, one of it
    a page is still read, and those of hints.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._of_hints = app.client.with_priority(Priority.CONFIRM).events
        self._others = app.client.with_priority(Priority.BACKFILL).events
        self._in_vain: Counter[str] = Counter()
        self._still_thin: Counter[str] = Counter()
        self._waiting: dict[str, Waiting] = {}
        self._found: dict[str, Event] = {}  # of a page that was cut: it goes on there

    async def read(self, listed: Sequence[Event], announced: Container[str]) -> Reads:
        """These as single reads show them; `announced` are in a hurry. Where FAILED_MAX in a row fail, the others are
        left as well: those that never failed come first the next time. Raises a PaymentsError that holds all calls
        up."""
        reads, tried, in_a_row = Reads(), set[str](), 0
        for event in sorted(filter(is_thin, listed), key=self._failures):
            is_urgent = event.id in announced
            if not is_urgent and event.type in tried and self._is_vain(event.type):
                continue
            if in_a_row >= FAILED_MAX:
                self._wait(event)
                reads.left.add(event.id)
                continue
            tried.add(event.type)
            try:
                whole = self._found.get(event.id) or await self._read(event, is_urgent=is_urgent)
            except PaymentsError as error:
                if _holds_all_up(error):
                    raise
                if not self._is_given_up(event, error):
                    in_a_row += 1
                    reads.failure = reads.failure or error
                    reads.left.add(event.id)
                elif is_urgent:
                    reads.left.add(event.id)
                else:
                    LOG.warning("event_taken_as_listed", application=event.application, event_id=event.id)
                continue
            in_a_row = 0
            self._waiting.pop(event.id, None)
            if whole is not None:
                self._in_vain[event.type] = self._in_vain[event.type] + 1 if whole.data == event.data else 0
                self._still_thin[event.type] = self._still_thin[event.type] + 1 if is_thin(whole) else 0
                reads.whole[event.id] = whole
                _keep_newest(self._found, event.id, whole)
            elif is_urgent:
                reads.left.add(event.id)
        for event_id in reads.whole:
            self._found.pop(event_id, None)
        return reads

    async def _read(self, event: Event, *, is_urgent: bool) -> Event | None:
        """None where the answer is not this event, or not understood."""
        record = await (self._of_hints if is_urgent else self._others).retrieve(event.id)
        name, broke = self._app.name, "event_read_singly_broke_its_reading"
        whole = as_read(
            record.raw_bytes, self._app.locators, application=name, received_at=event.received_at, broke=broke
        )
        return whole if whole is not None and whole.id == event.id else None

    def _is_given_up(self, event: Event, error: PaymentsError) -> bool:
        """Whether patience is over with one that failed. One that is old is not refused because it is too new."""
        waiting = self._wait(event)
        waiting.failures += 1
        at = event.occurred_at
        is_old = at is not None and (self._app.service_time() - at).total_seconds() >= PATIENCE_S
        return waiting.waited_s >= PATIENCE_S or (is_old and refuses(error))

    def _is_vain(self, event_type: str) -> bool:
        return self._in_vain[event_type] >= VAIN_MAX or self._still_thin[event_type] >= THIN_MAX

    def _wait(self, event: Event) -> Waiting:
        """It waits on. What lies between two walks counts, an outage in which there are none does not."""
        now_s = self._app.clock.monotonic()
        waiting = self._waiting.get(event.id) or Waiting(at_s=now_s)
        waiting.waited_s += min(now_s - waiting.at_s, STEP_MAX_S)
        waiting.at_s = now_s
        _keep_newest(self._waiting, event.id, waiting)
        return waiting

    def _failures(self, event: Event) -> int:
        return self._waiting[event.id].failures if event.id in self._waiting else 0


def _holds_all_up(error: PaymentsError) -> bool:
    """Whether it says nothing of the event. The list was shown just now: a request that was sent and not answered
    does."""
    return held_up_s(error) is not None and not (isinstance(error, ServiceUnreachable) and error.sent)


def is_thin(found: Event | Envelope) -> bool:
    """Whether it does not say what it is, or whose: of the service's own types each is of an object."""
    is_somebodys = found.type.startswith(("order.", "checkout.session.", "subscription."))
    names = (found.order_id, found.subscription_id, found.object_id)
    return found.type == UNKNOWN_TYPE or (is_somebodys and not any(names))


def _keep_newest(kept: dict[str, T], event_id: str, value: T) -> None:
    """Keep it as the newest of KEPT_MAX."""
    kept.pop(event_id, None)
    kept[event_id] = value
    while len(kept) > KEPT_MAX:
        del kept[next(iter(kept))]
