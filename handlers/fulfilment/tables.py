"""The tables of fulfilment. The application is part of every key (case G8); an order's id is kept whole (case F26)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Column, Index, String, Table, text
from sqlmodel import Field

from consumer.plugin import TableRow, UtcDateTime, Words
from handlers.findings import Finding


def _text(chars: int, *, key: bool = False) -> Any:
    return Field(default=None, sa_column=Column(Words(chars), primary_key=key, nullable=not key))


def _time(*, nullable: bool = True) -> Any:
    return Field(default=None, sa_column=Column(UtcDateTime, nullable=nullable))


class FulfilmentOrder(TableRow, table=True):
    """One order: `handlers.fulfilment.order.Order` as a row. Outlives every pruning (case B35)."""

    __tablename__ = "fulfilment_order"
    __table_args__ = (
        Index("ix_fulfilment_order_service", "service_order_id", "application"),
        Index("ix_fulfilment_order_customer", "customer", "application",
              postgresql_where=text("customer IS NOT NULL"), sqlite_where=text("customer IS NOT NULL")),
        Index("ix_fulfilment_order_held", "application", "order_id", postgresql_where=text("hold IS NOT NULL"),
              sqlite_where=text("hold IS NOT NULL")),
    )  # fmt: skip
    __table__: ClassVar[Table]

    application: str = _text(64, key=True)
    order_id: str = _text(255, key=True)
    customer: str | None = _text(255)
    session_id: str | None = _text(255)
    service_order_id: str | None = _text(255)
    registered_at: datetime | None = _time()
    expected_amount: str | None = _text(40)
    amount: str | None = _text(255)
    observed_status: str | None = _text(255)
    observed_version: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    unreadable_version: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    expired_at: datetime | None = _time()
    paid_at: datetime | None = _time()
    proof_event_id: str | None = _text(255)
    proof_type: str | None = _text(100)
    payment_id: str | None = _text(255)
    paid_amount: str | None = _text(255)
    hold: str | None = _text(40)
    requested_at: datetime | None = _time()
    unfulfillable_at: datetime | None = _time()


class FulfilmentCheckout(TableRow, table=True):
    """One checkout session: what the merchant registered for it, and what its events said."""

    __tablename__ = "fulfilment_checkout"
    __table_args__ = (
        Index("ix_fulfilment_checkout_order", "order_id", "application"),
        Index("ix_fulfilment_checkout_customer", "customer", "application"),
    )
    __table__: ClassVar[Table]

    application: str = _text(64, key=True)
    session_id: str = _text(255, key=True)
    order_id: str | None = _text(255)
    status: str = Field(default="OPEN", sa_column=Column(String(20), nullable=False))
    registered_at: datetime | None = _time()
    customer: str | None = _text(255)
    expected_amount: str | None = _text(40)
    mode: str | None = _text(20)
    price_id: str | None = _text(255)
    completed_at: datetime | None = _time()


class FulfilmentPayment(TableRow, table=True):
    """One SUCCEEDED payment, as a read showed it, or as a proof of its order names it that is not the first: the source
    of duplicate and orphan money (cases F28, F29, B33)."""

    __tablename__ = "fulfilment_payment"
    __table_args__ = (
        Index("ix_fulfilment_payment_order", "order_id", "application"),
        Index("ix_fulfilment_payment_service", "service_order_id", "application"),
        Index("ix_fulfilment_payment_session", "session_id", "application",
              postgresql_where=text("session_id IS NOT NULL"), sqlite_where=text("session_id IS NOT NULL")),
    )  # fmt: skip
    __table__: ClassVar[Table]

    application: str = _text(64, key=True)
    payment_id: str = _text(255, key=True)
    order_id: str | None = _text(255)
    service_order_id: str | None = _text(255)
    session_id: str | None = _text(255)
    amount: str | None = _text(255)
    seen_at: datetime = _time(nullable=False)


class FulfilmentFinding(Finding, table=True):
    """What an operator must see about orders and money."""

    __tablename__ = "fulfilment_finding"
    __table_args__ = (
        Index("ix_fulfilment_finding_open", "application", "kind", "subject",
              postgresql_where=text("closed_at IS NULL"), sqlite_where=text("closed_at IS NULL")),
    )  # fmt: skip
    __table__: ClassVar[Table]


ORDERS: Table = FulfilmentOrder.__table__
CHECKOUTS: Table = FulfilmentCheckout.__table__
PAYMENTS: Table = FulfilmentPayment.__table__
FINDINGS: Table = FulfilmentFinding.__table__
