"""An order as we know it, and the facts that can change it. Values only; `rules.py` says what a fact does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Literal, NamedTuple

PAID = "PAID"
KNOWN_STATUSES = frozenset({PAID, "PENDING", "EXPIRED", "CANCELED"})
SESSION_RANK = {"OPEN": 0, "EXPIRED": 1, "CANCELED": 2, "COMPLETED": 3}
Matching = Literal["auto", "off", "on", "read"]
_DECIMAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?\Z")


class Hold(StrEnum):
    """Why a paid order is not handed to fulfilment yet."""

    ASKED = "asked"  # the service is being asked whether there is such an order (auto); ends by itself
    UNMATCHED = (
        "unmatched"  # the merchant never registered it (on), or the service says that it has no such order (auto)
    )
    UNCONFIRMED = "unconfirmed"  # no read has shown that the order exists (read)
    AMOUNT = "amount_mismatch"


FINDING_OF_HOLD: dict[Hold | None, str] = {
    Hold.UNMATCHED: "paid_unmatched",
    Hold.UNCONFIRMED: "paid_unconfirmed",
    Hold.AMOUNT: "amount_mismatch",
}
"""The finding that an operator sees of a hold; nothing is found while the service is being asked."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Why we hold an order for paid: a verified event, a read, or an operator's word.

    `by_event`: an event of the service says so, however verified, which may be a test event of an order that does not
    exist (case U8); otherwise the order itself was read, or an operator knows it. `payment_id`: the payment that it
    shows, if it shows one.
    """

    event_id: str
    type: str
    at: datetime
    by_event: bool = False
    payment_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an authenticated read of the order showed; `version` was taken before the request."""

    version: int
    status: str | None
    amount: str | None = None
    service_order_id: str | None = None
    customer: str | None = None


@dataclass(frozen=True, kw_only=True)
class Registration:
    """What the merchant expects of an order, said when it made the checkout; None is not said."""

    session_id: str
    customer: str | None = None
    expected_amount: str | None = None
    mode: str | None = None
    price_id: str | None = None


class Order(NamedTuple):
    """One order of one application. Amounts are decimal strings in USDC, without the service fee. `payment_id`: the
    payment that the first proof to show one showed. `paid_amount`: what the largest of its payments came to; None while
    one of them does not show it."""

    customer: str | None = None
    session_id: str | None = None
    service_order_id: str | None = None
    registered_at: datetime | None = None
    expected_amount: str | None = None
    amount: str | None = None
    observed_status: str | None = None
    observed_version: int = 0
    unreadable_version: int | None = None
    expired_at: datetime | None = None
    paid_at: datetime | None = None
    proof_event_id: str | None = None
    proof_type: str | None = None
    payment_id: str | None = None
    paid_amount: str | None = None
    hold: Hold | None = None
    requested_at: datetime | None = None
    unfulfillable_at: datetime | None = None

    @property
    def is_unreadable(self) -> bool:
        """Whether the newest answer about it is that the service has no such order."""
        return (self.unreadable_version or 0) > self.observed_version

    @property
    def status(self) -> str:
        """The one word for the order: what a read said counts more than the hint `order.expired`."""
        if self.paid_at is not None:
            return PAID
        return self.observed_status or ("EXPIRED" if self.expired_at is not None else "PENDING")


def decimal(text: str | None) -> Decimal | None:
    """A plain decimal (`12.50`), or None for anything else: no exponent, no infinity, no blank (case F21, C21)."""
    return Decimal(text) if text is not None and _DECIMAL.match(text) else None
