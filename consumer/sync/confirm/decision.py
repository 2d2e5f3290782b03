"""Decision: what becomes of a hint after the service was asked about its event (cases I15-I17, U30). Pure."""

from __future__ import annotations

from consumer.events import Delivery, Event, Locators
from consumer.reason import Reason
from consumer.sync.api import PATIENCE_S
from consumer.sync.confirm.policy import LOOKS
from consumer.sync.provenance import as_read

Verdict = Event | Reason | None
"""The event as the service knows it; or why the hint is denied; or None: the service did not answer the question, and
that proves nothing."""


def confirmed(delivery: Delivery, raw: bytes, locators: Locators) -> Event | Reason:
    """The event in the record that the service returned for the hint's id; the record wins over the delivery (I16).

    A record with another id, or one in which the locators find none, confirms nothing.
    """
    broke = "fetched_event_broke_its_reading"
    event = as_read(raw, locators, application=delivery.application, received_at=delivery.received_at, broke=broke)
    if event is None:
        return Reason.FETCHED_NOT_UNDERSTOOD
    return event if event.id == delivery.event_id else Reason.OTHER_EVENT_FETCHED


def next_look_s(denials: int, patience_s: float = PATIENCE_S) -> float | None:
    """Seconds until a hint that was denied `denials` times is looked at again; None when patience is over.

    The waits between the looks, not the age of the hint, are what patience counts: an outage of ours or of the
    service uses up nothing (reads may lag behind deliveries, case U30).
    """
    waited = sum(LOOKS.wait_s(number, 0) for number in range(1, denials))
    return None if waited >= patience_s else LOOKS.wait_s(denials, 0)
