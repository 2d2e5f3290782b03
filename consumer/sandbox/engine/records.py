"""The records of the simulated service. Frozen: a change is a new version, so reads can lag and storage can follow.

Amounts are whole micro-USDC (6 decimals). `seq` is the order of creation and the numeric cursor.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class SessionStatus(StrEnum):
    """Where a checkout session stands."""

    OPEN = "OPEN"
    COMPLETED = "COMPLETED"
    EXPIRED = "EXPIRED"
    CANCELED = "CANCELED"


class OrderStatus(StrEnum):
    """Where an order stands; `PAID` absorbs."""

    PENDING = "PENDING"
    PAID = "PAID"
    EXPIRED = "EXPIRED"


class PaymentStatus(StrEnum):
    """In flight: BROADCAST (sent) or CONFIRMED. Outside, both are shown as one word (assumption)."""

    BROADCAST = "BROADCAST"
    CONFIRMED = "CONFIRMED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class SubscriptionStatus(StrEnum):
    """Where a subscription stands; `ENDED` absorbs."""

    ACTIVE = "ACTIVE"
    PAST_DUE = "PAST_DUE"
    ENDED = "ENDED"


class PlanStatus(StrEnum):
    """Where a plan on chain stands."""

    PREPARING = "preparing"
    READY = "ready"
    FAILED = "failed"


class DeliveryStatus(StrEnum):
    """Where a webhook delivery stands."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    DROPPED = "dropped"
    CANCELED = "canceled"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every record has. `app_id` is empty for what belongs to the merchant."""

    id: str
    seq: int
    app_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Merchant(Record):
    """Who sells. `fee_bps`: the service's fee in hundredths of a percent."""

    name: str
    active: bool = True
    wallet: str
    has_token_account: bool = True
    fee_bps: int = 0


@dataclass(frozen=True, kw_only=True)
class Secret:
    """An API secret by its digest; `expires_at` is set once it was rolled."""

    digest: str
    created_at: datetime
    expires_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Application(Record):
    """An application of a merchant, with its secrets and its webhook address."""

    merchant_id: str
    name: str
    created_at: datetime
    secrets: tuple[Secret, ...]
    webhook_url: str | None = None
    webhook_secrets: tuple[str, ...] = ()
    disabled_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Product(Record):
    """What prices are of."""

    merchant_id: str
    name: str
    created_at: datetime
    archived: bool = False


@dataclass(frozen=True, kw_only=True)
class Price(Record):
    """`interval_days` None is one-time, otherwise 30 or 365."""

    merchant_id: str
    product_id: str
    amount: int
    created_at: datetime
    interval_days: int | None = None
    archived: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """A recurring price on chain, tied to wallet and fee. `due_at` is when the running attempt, or the wait, ends."""

    merchant_id: str
    price_id: str
    wallet: str
    fee_bps: int
    status: PlanStatus
    started_at: datetime
    attempts: int = 0
    waiting: bool = False
    due_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Session(Record):
    """A checkout session. `order_ref` is the order's own id, `order_id` the merchant's."""

    merchant_id: str
    mode: str
    order_id: str
    order_ref: str | None
    status: SessionStatus
    success_url: str
    cancel_url: str
    ui_mode: str
    amount: int
    fee: int
    price_id: str | None
    product_id: str | None
    plan_id: str | None
    description: str | None
    line_items: tuple[dict[str, Any], ...]
    customer_email: str | None
    customer_reference: str | None
    metadata: dict[str, str]
    created_at: datetime
    expires_at: datetime
    token: str
    replaced_by: str | None = None
    payment_id: str | None = None
    subscription_id: str | None = None
    build_attempts: int = 0
    builds: int = 0
    prepared_until: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Order(Record):
    """One merchant order; `order_id` is the merchant's own. `session_id` is the newest session."""

    order_id: str
    status: OrderStatus
    amount: int
    fee: int
    description: str | None
    customer_email: str | None
    customer_reference: str | None
    metadata: dict[str, str]
    session_id: str
    created_at: datetime
    payment_id: str | None = None
    paid_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Payment(Record):
    """One transaction on Solana, for a session or for a renewal."""

    status: PaymentStatus
    amount: int
    fee: int
    to_wallet: str
    wallet: str
    signature: str
    created_at: datetime
    order_ref: str | None = None
    order_id: str | None = None
    session_id: str | None = None
    subscription_id: str | None = None
    finalize_at: datetime | None = None
    succeeded_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Subscription(Record):
    """A payer's subscription. Periods lie on a grid of `interval_days` from `started_at`.

    `charge` is what the next automatic renewal meets: ok, fail (counted), uncounted, skip (never tried).
    `onchain`: live, ending (the payer used "Cancel on Solana"), ended, reclaimed.
    """

    merchant_id: str
    status: SubscriptionStatus
    plan_id: str
    price_id: str
    product_id: str
    session_id: str
    wallet: str
    to_wallet: str
    amount: int
    fee: int
    interval_days: int
    customer_email: str | None
    customer_reference: str | None
    metadata: dict[str, str]
    started_at: datetime
    period_start: datetime
    period_end: datetime
    failures: int = 0
    retry_at: datetime | None = None
    by_hand: bool = False
    end_at: datetime | None = None
    payer_scheduled: bool = False
    merchant_cancel_requested: bool = False
    payer_withdrew: bool = False
    cancel_reason: str | None = None
    end_reason: str | None = None
    ended_at: datetime | None = None
    charge: str = "ok"
    onchain: str = "live"
    onchain_end_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Event(Record):
    """What happened, with the object as it was then. `extra` is merged into the envelope (test markers)."""

    type: str
    created_at: datetime
    object_kind: str
    object_id: str
    snapshot: dict[str, Any]
    extra: dict[str, Any]
    listed: bool = True


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try to deliver: `status` is the receiver's answer, `error` why there was none."""

    at: datetime
    status: int | None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Delivery(Record):
    """One arrival planned for a webhook endpoint. The marks are faults and hold for the first attempt."""

    event_id: str
    event_type: str
    sent_event_id: str
    url: str
    status: DeliveryStatus
    due_at: datetime
    created_at: datetime
    copy_number: int = 0
    truncate: bool = False
    wrong_signature: bool = False
    slow_s: float = 0.0
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoredAnswer(Record):
    """The answer to a POST, kept under its Idempotency-Key."""

    request_digest: str
    status: int
    body: str
    created_at: datetime
