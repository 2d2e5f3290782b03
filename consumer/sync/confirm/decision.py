"""Decision: what becomes of a hint after the service was asked about its event (cases I15-I17, U30). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import structlog

from consumer.errors import NotUnderstood
from consumer.events import Delivery, Event, Locators, Source, Trust, build_event
from consumer.reason import Reason
from consumer.retry import RetryPolicy

LOG = structlog.get_logger()

PATIENCE_S: Final = 900.0
_WAITS: Final = RetryPolicy(attempts=1000, first_s=2.0, factor=3.0, ceiling_s=120.0, jitter=0.0)


@dataclass(frozen=True)
class Confirmed:
    """The service knows the event: this is what it says."""

    event: Event


@dataclass(frozen=True)
class Denied:
    """The service does not show such an event to this application."""

    reason: Reason = Reason.NOT_CONFIRMED


@dataclass(frozen=True)
class Failed:
    """The service did not answer the question; that proves nothing."""

    code: str


Verdict = Confirmed | Denied | Failed


def confirmed(delivery: Delivery, raw: bytes, locators: Locators) -> Confirmed | Denied:
    """The event in the record that the service returned for the hint's id; the record wins over the delivery (I16).

    A record with another id, or one in which the locators find none, confirms nothing.
    """
    try:
        event = build_event(
            raw,
            locators,
            application=delivery.application,
            trust=Trust.READ,
            source=Source.WEBHOOK,
            received_at=delivery.received_at,
            delivery_id=delivery.id,
            traceparent=delivery.traceparent,
        )
    except NotUnderstood:
        return Denied(Reason.FETCHED_NOT_UNDERSTOOD)
    except Exception as error:  # noqa: BLE001 - one odd record keeps no other hint waiting
        LOG.error("fetched_event_broke_its_reading", application=delivery.application, error=type(error).__name__)  # noqa: TRY400 - its text may hold the sender's words
        return Denied(Reason.FETCHED_NOT_UNDERSTOOD)
    if event.id != delivery.event_id:
        return Denied(Reason.OTHER_EVENT_FETCHED)
    return Confirmed(event)


def next_look_s(denials: int, patience_s: float = PATIENCE_S) -> float | None:
    """Seconds until a hint that was denied `denials` times is looked at again; None when patience is over.

    The waits between the looks, not the age of the hint, are what patience counts: an outage of ours or of the
    service uses up nothing (reads may lag behind deliveries, case U30).
    """
    waited = sum(_WAITS.wait_s(number, 0) for number in range(1, denials))
    return None if waited >= patience_s else _WAITS.wait_s(denials, 0)
