"""An order as we know it, and the facts that can change it. Values only; `rules.py` says what a fact does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Literal

PAID = "PAID"
KNOWN_STATUSES = frozenset({PAID, "PENDING", "EXPIRED", "CANCELED"})
SESSION_RANK = {"OPEN": 0, "EXPIRED": 1, "CANCELED": 2, "COMPLETED": 3}
Matching = Literal["off", "on", "read"]


class Hold(StrEnum):
    """Why a paid order is not handed to fulfilment yet."""

    UNMATCHED = "unmatched"  # the merchant never registered it (matching on)
    UNCONFIRMED = "unconfirmed"  # no read has shown that the order exists (matching read)
    AMOUNT = "amount_mismatch"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Why we hold an order for paid: a verified event, a read, or an operator's word."""

    event_id: str
    type: str
    at: datetime


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
    """What the merchant expects of an order, said when it made the checkout."""

    session_id: str
    customer: str | None = None
    expected_amount: str | None = None


@dataclass(frozen=True, kw_only=True)
class Order:
    """One order of one application. Amounts are decimal strings in USDC, without the service fee."""

    customer: str | None = None
    session_id: str | None = None
    service_order_id: str | None = None
    registered_at: datetime | None = None
    expected_amount: str | None = None
    amount: str | None = None
    observed_status: str | None = None
    observed_version: int = 0
    expired_at: datetime | None = None
    paid_at: datetime | None = None
    proof_event_id: str | None = None
    proof_type: str | None = None
    hold: Hold | None = None
    requested_at: datetime | None = None
    unfulfillable_at: datetime | None = None

    @property
    def status(self) -> str:
        """The one word for the order: what a read said counts more than the hint `order.expired`."""
        if self.paid_at is not None:
            return PAID
        return self.observed_status or ("EXPIRED" if self.expired_at is not None else "PENDING")


def decimal(text: str | None) -> Decimal | None:
    """A finite decimal, or None where there is none to compare."""
    try:
        number = Decimal(text) if text is not None else None
    except InvalidOperation:
        return None
    return number if number is not None and number.is_finite() else None
