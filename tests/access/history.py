"""Histories of one customer's subscriptions, as the service could live them, and every way they can reach us."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from consumer.events import Event
from tests.support.handling.projections import START, observed, said, unreadable

CUSTOMER = "cus_1"
PERIOD = timedelta(days=30)
STEP = timedelta(minutes=1)


@dataclass(frozen=True)
class Truth:
    """One subscription at the service."""

    id: str
    status: str = "ACTIVE"
    period_end: datetime = START + PERIOD
    failures: int = 0
    end_reason: str | None = None
    ended_at: datetime | None = None
    cancel_at_period_end: bool = False
    cancel_reason: str | None = None
    merchant_cancel_requested: bool = False

    @property
    def record(self) -> dict[str, Any]:
        """What a read shows."""
        return {
            "id": self.id,
            "status": self.status,
            "end_reason": self.end_reason,
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
            "cancel_at_period_end": self.cancel_at_period_end,
            "cancel_reason": self.cancel_reason,
            "merchant_cancel_requested": self.merchant_cancel_requested,
            "current_period_end": self.period_end.isoformat(),
            "customer_reference": CUSTOMER,
            "price_id": "svc_price_monthly",
        }


@dataclass
class Service:
    """Lives a history: every move gives the events that the spec's table names (SU-T1 to SU-T11)."""

    now: datetime = START
    subs: dict[str, Truth] = field(default_factory=dict)
    events: list[tuple[str, str, datetime, str | None]] = field(default_factory=list)
    shown: list[Truth] = field(default_factory=list)
    late_charges: set[str] = field(default_factory=set)
    gaps: int = 0

    def move(self, what: str) -> None:
        """One move; one that the present state does not allow does nothing."""
        self.now += STEP
        live = [sub for sub in self.subs.values() if sub.status != "ENDED"]
        if what == "subscribe":
            self._subscribe(live)
        elif live:
            self._on(live[-1], what)
        elif what == "late_charge" and self.subs:
            last = list(self.subs.values())[-1]
            self.late_charges.add(last.id)
            self._say("renewed", last)

    def _subscribe(self, live: Sequence[Truth]) -> None:
        if self.subs and not live:
            self.gaps += 1
        new = Truth(f"S{len(self.subs) + 1}", period_end=self.now + PERIOD)
        self.subs[new.id] = new
        self._say("created", new)
        for old in live:
            self._end(old, "PAYER_CANCELED")

    def _on(self, sub: Truth, what: str) -> None:
        match what:
            case "renew":
                self._set(sub, status="ACTIVE", failures=0, period_end=sub.period_end + PERIOD)
                self._say("renewed", sub)
            case "fail" if sub.failures == 3:
                self._say("payment_failed", sub)
                self._end(sub, "PAYMENT_FAILED")
            case "fail":
                self._set(sub, status="PAST_DUE", failures=sub.failures + 1)
                self._say("payment_failed", sub)
                if sub.failures == 0:
                    self._say("past_due", sub)
            case "schedule":
                self._set(sub, cancel_at_period_end=True, cancel_reason="PAYER_CANCELED")
                self._say("cancel_scheduled", sub)
            case "merchant_schedule":
                self._set(sub, cancel_at_period_end=True, merchant_cancel_requested=True)
            case "withdraw":
                self._set(sub, cancel_at_period_end=sub.merchant_cancel_requested, cancel_reason=None)
                self._say("cancel_withdrawn", sub)
            case "merchant_now":
                self._end(sub, "MERCHANT_CANCELED")

    def _end(self, sub: Truth, reason: str) -> None:
        self._set(sub, status="ENDED", end_reason=reason, ended_at=self.now)
        self._say("ended", sub, reason)

    def _set(self, sub: Truth, **values: Any) -> None:
        self.subs[sub.id] = replace(self.subs[sub.id], **values)
        self.shown.append(self.subs[sub.id])

    def _say(self, what: str, sub: Truth, reason: str | None = None) -> None:
        if what == "created":
            self.shown.append(sub)
        self.events.append((what, sub.id, self.now, reason))

    @property
    def has_access(self) -> bool:
        """Whether the customer has a live subscription at the end."""
        return any(sub.status != "ENDED" for sub in self.subs.values())


MOVES = [
    "renew",
    "fail",
    "fail",
    "schedule",
    "merchant_schedule",
    "withdraw",
    "merchant_now",
    "late_charge",
    "subscribe",
]


@st.composite
def services(draw: st.DrawFn) -> Service:
    """A customer who subscribed once, and up to seven moves after that."""
    service = Service()
    service.move("subscribe")
    for what in draw(st.lists(st.sampled_from([*MOVES, "subscribe"]), max_size=7)):
        service.move(what)
    return service


def webhooks(service: Service, application: str, *, thin: bool) -> list[Event]:
    """Every event of the history; a thin one names the subscription and nothing else."""
    made = []
    for number, (what, sub, at, reason) in enumerate(service.events):
        body: dict[str, Any] = {} if thin else {"customer_reference": CUSTOMER, "end_reason": reason}
        type_, id_ = f"subscription.{what}", f"evt_{number}"
        made.append(said(type_, id_, at=at, arrives=service.now, application=application, id=sub, **body))
    return made


def readings(service: Service, application: str) -> list[Event]:
    """A read of every state the history went through, in versions of that order."""
    return [
        observed(f"subscription:{one.id}", number + 1, one.record, at=service.now, application=application)
        for number, one in enumerate(service.shown)
    ]


SESSION = "cs_1"


def by_session(event: Event) -> Event:
    """The same read, of a record that names its session in place of the customer (case U10)."""
    data = event.data["data"]
    record = {name: value for name, value in data["record"].items() if name != "customer_reference"}
    record["checkout_session_id"] = SESSION
    return observed(event.key, data["version"], record, at=event.received_at, application=event.application)


def session_readings(service: Service, application: str, *, first: int = 1, count: int = 2) -> list[Event]:
    """Reads of the session by which the customer came, from this version on."""
    record = {"id": SESSION, "status": "COMPLETED", "customer_reference": CUSTOMER}
    return [
        observed(f"session:{SESSION}", version, record, at=service.now, application=application)
        for version in range(first, first + count)
    ]


def denials(service: Service, application: str) -> list[Event]:
    """Answers of a service whose reads lag, in versions between those of the readings: no such subscription yet."""
    return [
        unreadable(f"subscription:{id_}", 500 + number, at=service.now, application=application)
        for number, id_ in enumerate(service.subs)
    ]


def reconcile(service: Service, application: str) -> list[Event]:
    """One pass over the final state."""
    return [
        observed(f"subscription:{one.id}", 1000 + number, one.record, at=service.now, application=application)
        for number, one in enumerate(service.subs.values())
    ]
