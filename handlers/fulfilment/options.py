"""The plugin's own settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from handlers.fulfilment.order import Matching
from handlers.pointers import TEST_MARKERS, Markers, Pointers


class Options(BaseModel):
    """`matching`: `auto` asks whether there is such an order before it believes an event alone, and waits for the
    answer, for at most `read_within_s` when the event is signed; `off` fulfils every paid order; `on` only those the
    merchant registered (others are parked, case F20); `read` those registered or shown by a read (a test event has no
    readable order, case F24). `amount`, `customer`, `service_order`, `payment_order`: JSON pointers inside a record or
    an event's object. `payment`: the same, to the payment that an order was paid by. `payment_session`: to the checkout
    that a payment was made in, asked where its record names no order. `session_order`: to the order of a session that
    was read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    matching: Matching = "auto"
    read_within_s: float = Field(default=3.0, ge=0, le=3600)
    test_markers: Markers = TEST_MARKERS
    amount: Pointers = ("/amount", "/order/amount")
    customer: Pointers = ("/customer_reference", "/order/customer_reference", "/customer/reference")
    service_order: Pointers = ("/id",)
    payment: Pointers = ("/payment_id", "/payment/id")
    payment_order: Pointers = ("/order_id", "/order/order_id")
    payment_service_order: Pointers = ("/order/id", "/order")
    payment_session: Pointers = (
        "/checkout_session_id",
        "/session_id",
        "/checkout_session/id",
        "/session/id",
        "/checkout_session",
        "/session",
    )
    payment_subscription: Pointers = ("/subscription_id", "/subscription/id", "/subscription")
    session_order: Pointers = ("/order/order_id", "/order_id")
    mode: Pointers = ("/mode", "/session/mode")
    lapse_read_delay_s: float = Field(default=30.0, ge=0, le=86400)
    disagreement_read_delay_s: float = Field(default=60.0, ge=0, le=86400)
