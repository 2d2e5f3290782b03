"""Payloads: the catalogue of every event a handler may get, one typed class each.

    async def ship(event: Event[FulfilmentRequested], ctx: Context) -> None:
        event.payload.amount

Our own events are shown wholly; of the service's only what its document shows (spec, Resources and their fields;
Events: "payload fields: not shown"), so all of that is optional; a handler that needs more reads
`event.payload.more`, or `event.data`. A test holds the catalogue to what the projections emit;
`python -m consumer.plugin.catalogue` writes the page of it, `handlers/EVENTS.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from consumer.payload import Payload


class _Known(Payload):
    """The catalogue's. Its validators are built when one is read first: a command that only looks reads none."""

    model_config = ConfigDict(defer_build=True)


_AT = "2026-01-15T12:00:00+00:00"
_LATER = "2026-02-14T12:00:00+00:00"

# --- what the projections tell -----------------------------------------------------------------------------------


class Proof(_Known):
    """By what an order was known to be paid."""

    event_id: str | None = Field(None, description="the event that proved it", examples=["evt_1"])
    type: str | None = Field(None, description="its type", examples=["order.paid"])


class FulfilmentRequested(_Known, event="fulfilment.requested"):
    """An order is proven to be paid: deliver it. Once per order."""

    order_id: str = Field(description="the merchant's own order id", examples=["A-1"])
    service_order_id: str | None = Field(None, description="the service's id of the order", examples=["order_1"])
    session_id: str | None = Field(None, description="the checkout session it was paid by", examples=["session_1"])
    customer: str | None = Field(None, description="the customer reference, where known", examples=["customer-1"])
    amount: str | None = Field(None, description="decimal USDC; None where no read or payload showed it",
                               examples=["25.00"])  # fmt: skip
    paid_at: datetime | None = Field(None, description="when it was proven to be paid", examples=[_AT])
    proof: Proof = Field(default_factory=Proof, description="by what it is known",
                         examples=[{"event_id": "evt_1", "type": "order.paid"}])  # fmt: skip
    record: Mapping[str, Any] | None = Field(
        None, description="the service's record of the order, as far as it was shown",
        examples=[{"id": "order_1", "order_id": "A-1", "status": "PAID"}],
    )  # fmt: skip


class Before(_Known):
    """How it was before the change."""

    allowed: bool = Field(description="whether it was allowed", examples=[False])


class AccessChanged(_Known):
    """What a customer may use has changed. Once per change."""

    customer: str = Field(description="the customer reference", examples=["customer-1"])
    entitlement: str = Field(description="what may be used", examples=["default"])
    until: datetime | None = Field(None, description="allowed until then; None: until something changes",
                                   examples=[_LATER])  # fmt: skip
    reasons: tuple[str, ...] = Field((), description="why, one word for each source", examples=[["active"]])
    version: int = Field(description="grows with each change of this customer's entitlement", examples=[1])


class AccessGranted(AccessChanged, event="access.granted"):
    """A customer may use something from now on. One handler takes this and `access.revoked`: between two no order is
    kept, and an `open` that is tried again undoes a `close`."""

    allowed: Literal[True] = Field(True, description="always true", examples=[True])
    before: Before = Field(default_factory=lambda: Before(allowed=False), description="how it was before",
                           examples=[{"allowed": False}])  # fmt: skip


class AccessRevoked(AccessChanged, event="access.revoked"):
    """A customer may use something no more."""

    allowed: Literal[False] = Field(False, description="always false", examples=[False])
    before: Before = Field(default_factory=lambda: Before(allowed=True), description="how it was before",
                           examples=[{"allowed": True}])  # fmt: skip


class AccessUnresolved(_Known, event="access.unresolved"):
    """A subscription is live, and nobody knows whose it is. Once per subscription."""

    subscription_id: str = Field(description="the subscription", examples=["subscription_1"])
    price_id: str | None = Field(None, description="its price", examples=["svc_price_monthly"])
    session_id: str | None = Field(None, description="the checkout session it came by", examples=["session_1"])
    order_id: str | None = Field(None, description="the order id of that session", examples=["A-1"])


# --- what was read of the service ----------------------------------------------------------------------------------


class OrderRecord(_Known):
    """The service's record of an order (spec, Order and payment: fields not shown)."""

    id: str | None = Field(None, description="the service's id", examples=["order_1"])
    order_id: str | None = Field(None, description="the merchant's own id", examples=["A-1"])
    status: str | None = Field(None, description="`PENDING`, `PAID`; statuses are open", examples=["PAID"])


class SubscriptionRecord(_Known):
    """The service's record of a subscription (spec, Subscription)."""

    id: str | None = Field(None, description="the subscription", examples=["subscription_1"])
    status: str | None = Field(None, description="`ACTIVE`, `PAST_DUE`, `ENDED`; statuses are open",
                               examples=["ACTIVE"])  # fmt: skip
    end_reason: str | None = Field(None, description="when ended: `PAYMENT_FAILED`, `PAYER_CANCELED`, "
                                   "`MERCHANT_CANCELED`", examples=[None])  # fmt: skip
    cancel_at_period_end: bool | None = Field(None, description="whether it ends with the paid period",
                                              examples=[False])  # fmt: skip
    cancel_reason: str | None = Field(None, description="the reason of a scheduled cancel", examples=[None])
    merchant_cancel_requested: bool | None = Field(None, description="whether a merchant's cancel stands",
                                                   examples=[False])  # fmt: skip


class SessionRecord(_Known):
    """The service's record of a checkout session (spec, Checkout session: most fields not shown)."""

    id: str | None = Field(None, description="the session", examples=["session_1"])
    order_id: str | None = Field(None, description="the merchant's own order id", examples=["A-1"])
    status: str | None = Field(None, description="`OPEN`, `COMPLETED`, `EXPIRED`, `CANCELED`; statuses are open",
                               examples=["COMPLETED"])  # fmt: skip
    customer_reference: str | None = Field(None, description="as the session was created with",
                                           examples=["customer-1"])  # fmt: skip


class Reading(_Known):
    """An authenticated read."""

    version: int = Field(description="of two reads the higher one was asked for later", examples=[1])
    read_at: datetime = Field(description="when it was read", examples=[_AT])


class OrderObserved(Reading, event="order.observed"):
    """An order as it was read."""

    record: OrderRecord = Field(description="the record, untouched", examples=[OrderRecord.example()])


class SubscriptionObserved(Reading, event="subscription.observed"):
    """A subscription as it was read."""

    record: SubscriptionRecord = Field(description="the record, untouched", examples=[SubscriptionRecord.example()])


class SessionObserved(Reading, event="session.observed"):
    """A checkout session as it was read, because somebody asked for it."""

    record: SessionRecord = Field(description="the record, untouched", examples=[SessionRecord.example()])


class PaymentObserved(Reading, event="payment.observed"):
    """A payment as it was read."""

    record: Mapping[str, Any] = Field(description="the record, untouched (spec: fields not shown)",
                                      examples=[{"id": "payment_1", "status": "SUCCEEDED"}])  # fmt: skip


class Unreadable(Reading, event=("order.unreadable", "subscription.unreadable")):
    """The service says that it has no such object. An answer about a read: nothing ends by it."""

    kind: str = Field(description="`order` or `subscription`", examples=["order"])
    id: str = Field(description="what was asked for", examples=["A-1"])
    status: int = Field(404, description="the HTTP status", examples=[404])
    code: str | None = Field(None, description="the service's own code", examples=["not_found"])
    request_id: str | None = Field(None, description="the service's id of the request", examples=["req_1"])


# --- what the service says -----------------------------------------------------------------------------------------


class OrderEvent(OrderRecord, event=("order.paid", "order.expired")):
    """What the service says of an order. To deliver, handle `fulfilment.requested`."""

    customer_reference: str | None = Field(None, description="as the session was created with",
                                           examples=["customer-1"])  # fmt: skip


class SessionEvent(
    SessionRecord, event=("checkout.session.completed", "checkout.session.canceled", "checkout.session.expired")
):
    """What the service says of a checkout session."""


class SubscriptionEvent(
    SubscriptionRecord,
    event=(
        "subscription.created", "subscription.renewed", "subscription.payment_failed", "subscription.past_due",
        "subscription.cancel_scheduled", "subscription.cancel_withdrawn", "subscription.ended",
    ),
):  # fmt: skip
    """What the service says of a subscription. To open and close access, handle `access.granted` and
    `access.revoked`, both in one handler."""

    subscription_id: str | None = Field(None, description="the subscription, as the locators found it",
                                        examples=["subscription_1"])  # fmt: skip
    customer_reference: str | None = Field(None, description="as the session was created with",
                                           examples=["customer-1"])  # fmt: skip


# --- what an operator or a plugin says -----------------------------------------------------------------------------


class CheckoutRegistered(_Known, event="checkout.registered"):
    """A checkout session was created for an order: whose it is, and what it should cost."""

    session_id: str = Field(description="the session", examples=["session_1"])
    order_id: str = Field(description="the merchant's own order id", examples=["A-1"])
    customer: str | None = Field(None, description="the customer reference", examples=["customer-1"])
    expected_amount: str | None = Field(None, description="decimal USDC", examples=["25.00"])
    mode: str | None = Field(None, description="`payment` or `subscription`", examples=["payment"])
    price_id: str | None = Field(None, description="the price it was created by, where said", examples=[None])


class WordSaid(_Known, event=("fulfilment.marked_paid", "fulfilment.released", "fulfilment.unfulfillable",
                           "access.brake_released", "access.recheck")):  # fmt: skip
    """A decision, with who made it and why."""

    by: str | None = Field(None, description="who says it", examples=["operator"])
    reason: str | None = Field(None, description="why", examples=["paid by hand"])
    after: str | None = Field(None, description="the customer with whom the projection goes on, batch by batch")
    hold: str | None = Field(None, description="what held the order as was seen; held otherwise, it is left alone")


class FindingClosed(WordSaid, event=("fulfilment.finding_closed", "access.finding_closed")):
    """A finding is settled by hand, and stays closed."""

    kind: str = Field(description="the finding's kind", examples=["late_payment"])
    seen: str | None = Field(None, description="stands for what of it was seen; where there is more, it stays open")


class CustomerAttached(WordSaid, event="access.customer_attached"):
    """Whose a subscription is."""

    customer: str = Field(description="the customer reference", examples=["customer-1"])
    source: str | None = Field(None, description="`operator` or `resolver`", examples=["resolver"])


class AccessGiven(WordSaid, event=("access.held", "access.complimentary_granted")):
    """A hold, or a gift, beside all subscriptions."""

    entitlement: str | None = Field(None, description="of what; None: everything", examples=["default"])
    until: datetime | None = Field(None, description="until then; None: until it is ended", examples=[_LATER])


class AccessTaken(WordSaid, event=("access.hold_lifted", "access.complimentary_ended")):
    """A hold, or a gift, is over."""

    id: str = Field(description="the id of the event that began it", examples=["drv_1"])


# --- timers of the projections -------------------------------------------------------------------------------------


class CustomerDue(_Known, event="access.customer_due"):
    """The projection looks again at a customer."""

    due: datetime | None = Field(None, description="since when it is due", examples=[_AT])
    released: bool = Field(False, description="whether an operator let a stopped revocation go", examples=[False])
    alone: bool = Field(False, description="whether nobody is heard of who may take over", examples=[False])


class SubscriptionDue(_Known, event="access.subscription_due"):
    """The projection looks again at a subscription."""

    why: str = Field(description="for what", examples=["period_end"])
    due: datetime = Field(description="since when it is due", examples=[_AT])
    wait_s: float = Field(0, description="seconds it had waited before", examples=[0])
    heard_at: datetime | None = Field(None, description="when that was heard which set it off", examples=[_AT])


class ReadDue(_Known, event="fulfilment.read_due"):
    """The projection asks for a read of an order."""

    due: datetime = Field(description="since when it is due", examples=[_AT])


SHOWN: tuple[type[Payload], ...] = (
    FulfilmentRequested, AccessGranted, AccessRevoked, AccessUnresolved, OrderObserved, SubscriptionObserved,
    SessionObserved, PaymentObserved, Unreadable, OrderEvent, SessionEvent, SubscriptionEvent, CheckoutRegistered,
    WordSaid, FindingClosed, CustomerAttached, AccessGiven, AccessTaken, CustomerDue, SubscriptionDue, ReadDue,
)  # fmt: skip
"""Every class of the catalogue, as the page of it shows them."""

CATALOGUE: frozenset[str] = frozenset(one for model in SHOWN for one in model.event_types)
"""Every type of it; the others are a plugin's own, or new ones of the service."""
_WORDS = (WordSaid, FindingClosed, CustomerAttached, AccessGiven, AccessTaken)
OURS: frozenset[str] = CATALOGUE - {one for model in _WORDS for one in model.event_types}
"""What only the service, a read of it, or a built-in projection says. Said by a plugin it would be a second parcel, a
proof that nobody gave, or a timer that is gone."""


def not_a_plugins(what: str, event_type: str) -> str | None:
    """What is wrong where a plugin says (`emit`), or takes back (`withdraw`), what is not a plugin's to say."""
    if event_type not in OURS:
        return None
    return f"{what} of {event_type} is no plugin's: the service says it, or a built-in handler, exactly once"
