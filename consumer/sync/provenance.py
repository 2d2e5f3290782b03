"""Provenance: the service's record of an event, and a delivery against it (cases I15, I16, U28)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime

import structlog

from consumer.errors import NotUnderstood
from consumer.events import Delivery, Event, Locators, Source, Trust, build_event, locate, parse_json
from consumer.reason import Reason

LOG = structlog.get_logger()


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
    """Which of id, type and object id the delivery states otherwise than the service (a sign of forgery, I16, U28).

    What the delivery leaves out is no difference: a thin body may name the event only.
    """
    try:
        claimed = locate(parse_json(delivery.raw), locators)
    except NotUnderstood:
        return ("body",)
    found = []
    if claimed.id != event.id:
        found.append("id")
    if claimed.type not in (event.type, "unknown.type"):
        found.append("type")
    if (
        claimed.type == event.type
        and claimed.object_id is not None
        and event.object_id not in (None, claimed.object_id)
    ):
        found.append("object_id")
    return tuple(found)


def other_body(delivery: Delivery) -> Delivery:
    """A delivery to be kept beside the event it speaks of; the same body is kept once, however often it comes."""
    name = "other:" + hashlib.sha256(delivery.raw).hexdigest()[:40]
    return replace(delivery, id=name, problem=Reason.OTHER_BODY)
