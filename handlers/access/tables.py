"""The tables of access. The application is part of every key (case G8)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Boolean, Column, Index, Integer, String, Table, text
from sqlmodel import Field

from consumer.plugin import TableRow, UtcDateTime, Words
from handlers.access.policy import ENTITLEMENT_MAX_CHARS
from handlers.findings import Finding

NOBODYS = "customer IS NULL AND version = 0"
"""Of a subscription that was heard of: nobody said whose it is, and no read has shown it yet."""


def _text(chars: int, *, key: bool = False) -> Any:
    return Field(default=None, sa_column=Column(Words(chars), primary_key=key, nullable=not key))


def _time(*, nullable: bool = True) -> Any:
    return Field(default=None, sa_column=Column(UtcDateTime, nullable=nullable))


def _flag() -> Any:
    return Field(default=False, sa_column=Column(Boolean, nullable=False))


class AccessSubscription(TableRow, table=True):
    """One subscription: `handlers.access.subscription.Subscription` as a row."""

    __tablename__ = "access_subscription"
    __table_args__ = (
        Index("ix_access_subscription_customer", "customer", "application"),
        Index("ix_access_subscription_session", "session_id", "application"),
        Index("ix_access_subscription_order", "order_id", "application"),
        Index("ix_access_subscription_unread", "hinted_at", postgresql_where=text("status IS NULL"),
              sqlite_where=text("status IS NULL")),
        Index("ix_access_subscription_nobodys", "application", "hinted_at", postgresql_where=text(NOBODYS),
              sqlite_where=text(NOBODYS)),
    )  # fmt: skip
    __table__: ClassVar[Table]

    application: str = _text(64, key=True)
    subscription_id: str = _text(255, key=True)
    customer: str | None = _text(255)
    customer_source: str = Field(default="", sa_column=Column(String(20), nullable=False))
    attached_at: datetime | None = _time()
    price_id: str | None = _text(255)
    product_id: str | None = _text(255)
    session_id: str | None = _text(255)
    order_id: str | None = _text(255)
    status: str | None = _text(20)
    provisional: bool = _flag()
    version: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    read_at: datetime | None = _time()
    period_end: datetime | None = _time()
    past_due_since: datetime | None = _time()
    past_due_heard_at: datetime | None = _time()
    active_at: datetime | None = _time()
    end_reason: str | None = _text(255)
    ended_at: datetime | None = _time()
    settle_from: datetime | None = _time()
    settle_until: datetime | None = _time()
    cancel_at_period_end: bool = _flag()
    cancel_reason: str | None = _text(255)
    merchant_cancel_requested: bool = _flag()
    renewed_at: datetime | None = _time()
    charged_after_end: bool = _flag()
    lease_until: datetime | None = _time()
    hinted_at: datetime | None = _time()
    unannounced: bool = _flag()
    unreadable_version: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    awaits: str | None = _text(20)
    awaits_at: datetime | None = _time()
    awaits_since: datetime | None = _time()


class AccessCustomer(TableRow, table=True):
    """One customer: its row lock puts decisions about the customer in a line; `as_of` is the time of the last one."""

    __tablename__ = "access_customer"
    __table__: ClassVar[Table]

    application: str = _text(64, key=True)
    customer: str = _text(255, key=True)
    as_of: datetime = _time(nullable=False)


class AccessEntitlement(TableRow, table=True):
    """The standing decision for (customer, entitlement); `version` counts its changes, each of which was emitted."""

    __tablename__ = "access_entitlement"
    __table_args__ = (
        Index("ix_access_entitlement_braked", "application", "customer", postgresql_where=text("braked"),
              sqlite_where=text("braked = 1")),
        Index("ix_access_entitlement_allowed", "application", postgresql_where=text("allowed"),
              sqlite_where=text("allowed = 1")),
    )  # fmt: skip
    __table__: ClassVar[Table]

    application: str = _text(64, key=True)
    customer: str = _text(255, key=True)
    entitlement: str = _text(ENTITLEMENT_MAX_CHARS, key=True)
    allowed: bool = _flag()
    until: datetime | None = _time()
    reasons: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    version: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    changed_at: datetime = _time(nullable=False)
    braked: bool = _flag()


class AccessSource(TableRow, table=True):
    """An operator's complimentary grant or hold on a customer (case A42); `ended_at` when it was lifted."""

    __tablename__ = "access_source"
    __table_args__ = (Index("ix_access_source_customer", "customer", "application"),)
    __table__: ClassVar[Table]

    application: str = _text(64, key=True)
    id: str = _text(255, key=True)
    kind: str = Field(sa_column=Column(String(20), nullable=False))
    customer: str = Field(sa_column=Column(Words(255), nullable=False))
    entitlement: str | None = _text(ENTITLEMENT_MAX_CHARS)
    until: datetime | None = _time()
    reason: str | None = _text(500)
    by: str | None = _text(100)
    created_at: datetime = _time(nullable=False)
    ended_at: datetime | None = _time()


class AccessLink(TableRow, table=True):
    """Whose a checkout is, as the merchant registered it (the customer link)."""

    __tablename__ = "access_link"
    __table_args__ = (Index("ix_access_link_order", "order_id", "application"),)
    __table__: ClassVar[Table]

    application: str = _text(64, key=True)
    session_id: str = _text(255, key=True)
    order_id: str | None = _text(255)
    customer: str = Field(sa_column=Column(Words(255), nullable=False))
    registered_at: datetime = _time(nullable=False)


class AccessBrake(TableRow, table=True):
    """How many grants reads alone took back in the running window."""

    __tablename__ = "access_brake"
    __table__: ClassVar[Table]

    application: str = _text(64, key=True)
    since: datetime = _time(nullable=False)
    revoked: int = Field(default=0, sa_column=Column(Integer, nullable=False))


class AccessFinding(Finding, table=True):
    """What an operator must see about subscriptions and access."""

    __tablename__ = "access_finding"
    __table_args__ = (
        Index("ix_access_finding_open", "application", "kind", "subject", postgresql_where=text("closed_at IS NULL"),
              sqlite_where=text("closed_at IS NULL")),
    )  # fmt: skip
    __table__: ClassVar[Table]


SUBSCRIPTIONS: Table = AccessSubscription.__table__
CUSTOMERS: Table = AccessCustomer.__table__
ENTITLEMENTS: Table = AccessEntitlement.__table__
SOURCES: Table = AccessSource.__table__
LINKS: Table = AccessLink.__table__
BRAKES: Table = AccessBrake.__table__
FINDINGS: Table = AccessFinding.__table__
