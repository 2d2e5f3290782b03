"""Observation: an authenticated read of an order, a subscription, a session, a payment, as an event of our own. Pure.

The event's `data` is `{"version", "read_at", "record"}`: the version taken before the request (case A40), when it was
read, and the service's record untouched. `unreadable` is the other answer: the service says that it has no such object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal

import orjson

from consumer.events import Event, Source
from consumer.ledger.reading.observations import Observed
from consumer.wire import own_event

ObjectKind = Literal["order", "subscription", "payment", "session"]

MEANING = ("status", "end_reason", "cancel_at_period_end", "cancel_reason", "merchant_cancel_requested")
"""The fields of a record whose change is a change of state (spec, Subscription, Order and payment)."""
DECIDING: Final = ("id", "order_id", "amount", "customer_reference", "price_id", "product_id", "order", "price")
"""The fields beside those that the built-in handlers look for first."""
REDUCED_FIELDS, REDUCED_CHARS, REDUCED_DEPTH = 100, 255, 3
NOT_FOUND: Final = 404
PAID: Final = "PAID"
ENDED: Final = "ENDED"
STATUSES: Final[Mapping[str, frozenset[str]]] = {
    "order": frozenset({"PENDING", PAID, "EXPIRED", "CANCELED"}),
    "subscription": frozenset({"ACTIVE", "PAST_DUE", ENDED}),
    "session": frozenset({"OPEN", "COMPLETED", "EXPIRED", "CANCELED"}),
}
"""The status words that are known (spec, Subscription, Order and payment, Checkout session); another one is no error,
but told (U26)."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One object as it was read. `object_id` is the merchant's order id, or the id of what else it is.
    `traceparent`: of what asked for it, if anything did."""

    application: str
    kind: ObjectKind
    object_id: str
    version: int
    read_at: datetime
    record: Mapping[str, Any]
    traceparent: str | None = None

    @property
    def key(self) -> str:
        """The aggregate."""
        return f"{self.kind}:{self.object_id}"

    @cached_property
    def observed(self) -> Observed:
        """What the ledger keeps of it, to compare the next one with."""
        return Observed(
            application=self.application,
            kind=self.kind,
            object_id=self.object_id,
            version=self.version,
            digest=digest(self.record),
            read_at=self.read_at,
            state=meaning(self.record),
            shape=shape(self.record),
        )

    @property
    def event_id(self) -> str:
        """The id of its event, made of the version, not of the content: the same content seen again after another one
        in between is a new fact."""
        return observation_id(self.application, self.kind, self.object_id, self.version)

    @property
    def status(self) -> str:
        """The status word; empty when there is none."""
        return _word(self.record.get("status"))

    @property
    def has_unknown_status(self) -> bool:
        """Whether the service has used a word that is not known (cases F34, A35)."""
        return bool(self.status) and self.status not in STATUSES.get(self.kind, {self.status})

    @property
    def is_paid(self) -> bool:
        """An order that is PAID: what `order.paid` says too."""
        return self.kind == "order" and self.status == PAID

    def event(self) -> Event:
        """`order.observed`, `subscription.observed`, `payment.observed` or `session.observed`."""
        return own_event(
            application=self.application,
            id=self.event_id,
            type=f"{self.kind}.observed",
            key=self.key,
            source=Source.READ,
            at=self.read_at,
            data={"version": self.version, "read_at": self.read_at.isoformat(), "record": dict(self.record)},
            traceparent=self.traceparent,
        )


def unreadable(
    application: str,
    kind: str,
    object_id: str,
    *,
    version: int,
    read_at: datetime,
    said: Mapping[str, str | None],
    status: int = NOT_FOUND,
    traceparent: str | None = None,
) -> Event:
    """`order.unreadable` or `subscription.unreadable`: the service answered that it does not show this object (404, or
    a success without it), to credentials that work.

    An answer about a read, not about the object: nothing ends by it (case G7), and it may be there a moment later
    (case U30). `said`: the service's own `code` and `request_id`.
    """
    return own_event(
        application=application,
        id=observation_id(application, f"{kind}.unreadable", object_id, version),
        type=f"{kind}.unreadable",
        key=f"{kind}:{object_id}",
        source=Source.READ,
        at=read_at,
        data={
            "kind": kind,
            "id": object_id,
            "version": version,
            "read_at": read_at.isoformat(),
            "status": status,
            **said,
        },
        traceparent=traceparent,
    )


def reduced(event: Event) -> Event:
    """An observation that is larger than topic `events` takes, with what decides: the documented fields, and as many
    others as are short words, in their order. A handler that needs more reads the record itself (`ctx.payments`)."""
    data = event.data["data"]
    return own_event(
        application=event.application,
        id=event.id,
        type=event.type,
        key=event.key,
        source=event.source,
        at=event.received_at,
        data={**data, "record": _short(data["record"], 0, [REDUCED_FIELDS]), "reduced": True},
        traceparent=event.traceparent,
    )


def _short(record: Mapping[str, Any], depth: int, left: list[int]) -> dict[str, Any]:
    """The short words of a record and of the objects in it; `left` counts down how many may still be kept."""
    kept: dict[str, Any] = {}
    for name in sorted(record, key=lambda one: one not in (*MEANING, *DECIDING)):
        value = record[name]
        is_short = len(name) <= REDUCED_CHARS and (not isinstance(value, str) or len(value) <= REDUCED_CHARS)
        if left[0] <= 0 or not is_short or isinstance(value, list):
            continue
        if isinstance(value, dict):
            if depth < REDUCED_DEPTH and (short := _short(value, depth + 1, left)):
                kept[name] = short
            continue
        left[0] -= 1
        kept[name] = value
    return kept


def observation_id(application: str, kind: str, object_id: str, version: int) -> str:
    """The id of an observation: the same read is the same event, however often it is published."""
    seed = f"{application}\0{kind}\0{object_id}\0{version}"
    return "obs_" + hashlib.sha256(seed.encode()).hexdigest()[:40]


def digest(record: Mapping[str, Any]) -> str:
    """A fingerprint of the whole content, whatever the order of its fields."""
    return hashlib.sha256(orjson.dumps(dict(record), option=orjson.OPT_SORT_KEYS)).hexdigest()


def meaning(record: Mapping[str, Any]) -> str:
    """The record's state in documented fields, as a short text: equal texts mean that nothing documented changed."""
    return "|".join(_word(record.get(name)) for name in MEANING)[:200]


def status_of(state: str) -> str:
    """The status word of a `meaning`."""
    return state.partition("|")[0]


def differing(state: str, other: str) -> frozenset[str]:
    """The names of the fields in which two meanings differ."""
    pairs = zip(MEANING, _words(state), _words(other), strict=True)
    return frozenset(name for name, one, another in pairs if one != another)


def readable(state: str, other: str = "") -> str:
    """A meaning for people: its status, and of the rest what is said here or there and differs: `ENDED, end_reason
    PAYER_CANCELED`."""
    words = dict(zip(MEANING, _words(state), strict=True))
    named = [name for name in MEANING[1:] if name in differing(state, other) and words[name] not in ("", "False")]
    shown = [name if words[name] == "True" else f"{name} {words[name]}" for name in named]
    return ", ".join((words["status"] or "no status", *shown))


def shape(record: Mapping[str, Any]) -> str:
    """A fingerprint of which fields the record has: a list may show fewer than a single read does (case B22)."""
    return hashlib.sha256("\0".join(sorted(record)).encode()).hexdigest()[:16]


def _words(state: str) -> list[str]:
    """The words of a meaning, one for each of its fields."""
    return (state.split("|") + [""] * len(MEANING))[: len(MEANING)]


def _word(value: Any) -> str:
    return "" if value is None else str(value)[:40]
