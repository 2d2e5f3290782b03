"""Provenance: the service's record of an event, and a delivery against it (cases I15, I16, U28)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import structlog

from consumer.errors import NotUnderstood
from consumer.events import (
    UNKNOWN_TYPE,
    Delivery,
    Event,
    Locators,
    Source,
    Trust,
    build_event,
    first,
    locate,
    parse_json,
)
from consumer.reason import Reason

LOG = structlog.get_logger()

_OBJECTS: Final = ("object_id", "order_id", "subscription_id", "customer")
AMOUNT_CHARS: Final = 64
_AMOUNTS: Final = ("/data/object/amount", "/data/amount", "/object/amount", "/amount")


def as_read(raw: bytes, locators: Locators, *, application: str, received_at: datetime, broke: str) -> Event | None:
    """The event in a record that the service returned; None where the locators find none. One odd record keeps no
    other waiting: `broke` is the word of the line that tells of it."""
    try:
        return build_event(
            raw, locators, application=application, trust=Trust.READ, source=Source.BACKFILL, received_at=received_at
        )
    except NotUnderstood:
        return None
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this record's alone
        LOG.error(broke, application=application, error=type(error).__name__)  # noqa: TRY400 - its text may hold the sender's words
        return None


def as_webhook(event: Event, delivery: Delivery) -> Event:
    """The service's event with the provenance of the delivery that announced it."""
    return replace(
        event,
        source=Source.WEBHOOK,
        received_at=delivery.received_at,
        delivery_id=delivery.id,
        traceparent=delivery.traceparent,
    )


def differing(delivery: Delivery, event: Event, locators: Locators) -> tuple[str, ...]:
    """What the delivery states otherwise than the service, by name: id, type, and of the object its ids, customer and
    amount (a sign of forgery, I16, U28).

    What the delivery leaves out is no difference: a thin body may name the event only. Neither is what else of an
    object changes while it lives.
    """
    try:
        document = parse_json(delivery.raw)
        claimed = locate(document, locators)
    except NotUnderstood:
        return ("body",)
    found = [] if claimed.id == event.id else ["id"]
    if claimed.type != event.type:
        return (*found, *([] if UNKNOWN_TYPE in (claimed.type, event.type) else ["type"]))
    stated = {name: (getattr(claimed, name), getattr(event, name)) for name in _OBJECTS}
    stated["amount"] = (_amount(document), _amount(event.data) if event.raw else None)  # archived: it has no body
    return (*found, *(name for name, pair in stated.items() if None not in pair and pair[0] != pair[1]))


def _amount(document: Mapping[str, Any]) -> Decimal | None:
    """The amount that it states, or None."""
    try:
        found = Decimal(str(first(document, _AMOUNTS))[:AMOUNT_CHARS])
    except ArithmeticError:
        return None
    return found if found.is_finite() else None


def other_body(delivery: Delivery) -> Delivery:
    """A delivery to be kept beside the event it speaks of; the same body is kept once, however often it comes."""
    name = "other:" + hashlib.sha256(delivery.raw).hexdigest()[:40]
    return replace(delivery, id=name, problem=Reason.OTHER_BODY)
