"""A subscription as we know it, and what an authenticated read of it says. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

ACTIVE, PAST_DUE, ENDED = "ACTIVE", "PAST_DUE", "ENDED"
STATUSES = frozenset({ACTIVE, PAST_DUE, ENDED})
PAYER_CANCELED, MERCHANT_CANCELED, PAYMENT_FAILED = "PAYER_CANCELED", "MERCHANT_CANCELED", "PAYMENT_FAILED"
END_REASONS = frozenset({PAYER_CANCELED, MERCHANT_CANCELED, PAYMENT_FAILED})

# Who said whose subscription it is; a higher rank replaces a lower one, never the other way round.
# `order`: the merchant registered another checkout of the same order, which may have been another customer's.
# `session`: the record of its own session, which is read where nobody else says it (U10). It is the last: a resolver,
# who is asked at the same time, may be heard before it or after.
CUSTOMER_RANK = {
    "": 0, "session": 1, "resolver": 2, "order": 3, "payload": 4, "read": 5, "checkout": 6, "operator": 7,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Details:
    """Facts beside the state, as a payload or a read mentions them."""

    customer: str | None = None
    price_id: str | None = None
    product_id: str | None = None
    session_id: str | None = None
    order_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One authenticated read. `version` was taken before the request: an older one never overwrites a newer one.

    `shows`: the fields the record has; a list's item may lack some, and what it lacks is not denied (case B22).
    """

    version: int
    read_at: datetime
    status: str
    details: Details = field(default_factory=Details)
    period_end: datetime | None = None
    past_due_since: datetime | None = None
    end_reason: str | None = None
    ended_at: datetime | None = None
    cancel_at_period_end: bool = False
    cancel_reason: str | None = None
    merchant_cancel_requested: bool = False
    shows: frozenset[str] = frozenset({"cancel_at_period_end", "cancel_reason", "merchant_cancel_requested"})


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """One subscription of one application.

    `status` is None until a read (or `subscription.created`, provisionally) says more. Times of the service
    (`period_end`, `ended_at`, `renewed_at`, `past_due_heard_at`: the newest `subscription.past_due`) are compared with
    each other only; ours (`read_at`, `active_at`: the newest read that said ACTIVE, `settle_until`,
    `past_due_since`, `lease_until`, `hinted_at`: the last verified event, `attached_at`: the word on whose it is) with
    our own clock. `unannounced`: it got worse by a read that no event announced, which is what the brake is for.
    `unreadable_version`: the last read that the service answered with "no such subscription". `awaits`: what a verified
    event lets the next read show (expectation.py), said at `awaits_at` by the service's clock.
    """

    customer: str | None = None
    customer_source: str = ""
    attached_at: datetime | None = None
    price_id: str | None = None
    product_id: str | None = None
    session_id: str | None = None
    order_id: str | None = None
    status: str | None = None
    provisional: bool = False
    version: int = 0
    read_at: datetime | None = None
    active_at: datetime | None = None
    period_end: datetime | None = None
    past_due_since: datetime | None = None
    past_due_heard_at: datetime | None = None
    end_reason: str | None = None
    ended_at: datetime | None = None
    settle_from: datetime | None = None
    settle_until: datetime | None = None
    cancel_at_period_end: bool = False
    cancel_reason: str | None = None
    merchant_cancel_requested: bool = False
    renewed_at: datetime | None = None
    charged_after_end: bool = False
    lease_until: datetime | None = None
    hinted_at: datetime | None = None
    unannounced: bool = False
    unreadable_version: int | None = None
    awaits: str | None = None
    awaits_at: datetime | None = None
    awaits_since: datetime | None = None

    @property
    def is_unreadable(self) -> bool:
        """Whether the newest answer about it is that the service has no such subscription."""
        return (self.unreadable_version or 0) > self.version

    @property
    def is_live(self) -> bool:
        """Whether it may grant something: ACTIVE or PAST_DUE."""
        return self.status in (ACTIVE, PAST_DUE)

    @property
    def grace_from(self) -> datetime | None:
        """From when a grace counts: the start of PAST_DUE, or a later charge, which made that start good (case A10)."""
        if self.past_due_since is None or self.renewed_at is None:
            return self.past_due_since
        return max(self.past_due_since, self.renewed_at)

    @property
    def will_end(self) -> bool:
        """A merchant's cancel stands even if the payer withdraws his own (cases A19, A20)."""
        return self.is_live and (self.cancel_at_period_end or self.merchant_cancel_requested)


FIELDS = tuple(one.name for one in fields(Subscription))


def to_subscription(row: Any) -> Subscription:
    """A row (mapping) of the table as the value."""
    return Subscription(**{name: row[name] for name in FIELDS})
