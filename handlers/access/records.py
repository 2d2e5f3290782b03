"""Taking facts about a subscription out of payloads and records, whose fields are mostly not shown (case U10)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from consumer.plugin import Event, parse_time
from handlers.access.policy import Policy
from handlers.access.subscription import Details, Reading
from handlers.pointers import look, look_text


def details_of(event: Event, policy: Policy) -> Details:
    """Whose it is, what it is for and which checkout it came from, as far as it is said."""
    return Details(
        customer=event.customer or look_text(event, policy.customer),
        price_id=look_text(event, policy.price),
        product_id=look_text(event, policy.product),
        session_id=look_text(event, policy.session),
        order_id=look_text(event, policy.order),
    )


def reading_of(event: Event, policy: Policy) -> Reading | None:
    """The read in an observation, or None when it is not one."""
    version, record = event.find("/data/version"), event.find("/data/record")
    status = event.find("/data/record/status")
    if not isinstance(version, int) or not isinstance(record, dict):
        return None
    return Reading(
        version=version,
        read_at=moment(event, ("/data/read_at",)) or event.received_at,
        status=status if isinstance(status, str) else "",  # no word of ours: shown, and read again (case A35)
        details=details_of(event, policy),
        period_end=parse_time(look(event, policy.period_end)),
        past_due_since=parse_time(look(event, policy.past_due_since)),
        end_reason=look_text(event, ("/end_reason",)),
        ended_at=parse_time(look(event, policy.ended_at)),
        cancel_at_period_end=look(event, ("/cancel_at_period_end",)) is True,
        cancel_reason=look_text(event, ("/cancel_reason",)),
        merchant_cancel_requested=look(event, ("/merchant_cancel_requested",)) is True,
        shows=frozenset(record),
    )


def moment(event: Event, pointers: Sequence[str]) -> datetime | None:
    """A time in our own envelope, aware, in UTC."""
    found = parse_time(event.find(*pointers))
    return None if found is None else found.astimezone(UTC)
