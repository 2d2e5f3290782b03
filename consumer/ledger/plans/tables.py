"""The tables of replay plans: what an operator decided to do again (plans), and exactly to what (plan_items)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

from sqlalchemy import Boolean, Column, Index, Integer, LargeBinary, String, Text, text
from sqlmodel import Field

from consumer.columns import Words, serial
from consumer.ledger.base_tables import LedgerRow, time_column
from consumer.ledger.tables import HANDLER_CHARS, REASON_CHARS, application_column


class PlanStatus(StrEnum):
    """Where a plan stands. At most one is `applying`; `applied` and `cancelled` are final."""

    PLANNED = "planned"
    APPLYING = "applying"
    APPLIED = "applied"
    CANCELLED = "cancelled"


class Action(StrEnum):
    """What is done with a pair: `start` one that never ran, `retry` a dead run, `hasten` one that waits for its time,
    `rerun` one that succeeded (or was skipped). `follow`: nothing; it waits behind another of the plan, and goes on by
    itself."""

    START = "start"
    RETRY = "retry"
    HASTEN = "hasten"
    RERUN = "rerun"
    FOLLOW = "follow"


RENEWS: Final = frozenset({Action.RETRY, Action.HASTEN, Action.RERUN})
"""What gets a new idempotency key under a plan that renews them: what ran before, and had one."""


class ItemStatus(StrEnum):
    """Where an item stands: `taken` by a worker, in the transaction that acted on it; `moved`: not acted on, because it
    was not as planned any more."""

    PENDING = "pending"
    TAKEN = "taken"
    MOVED = "moved"
    CANCELLED = "cancelled"


class PlanRow(LedgerRow, table=True):
    """One plan. `filters` are as they were given, `predicted` is the summary that was shown, both JSON."""

    __tablename__ = "plans"
    __table_args__ = (
        Index("ux_plans_applying", "status", unique=True, postgresql_where=text("status = 'applying'"),
              sqlite_where=text("status = 'applying'")),
    )  # fmt: skip

    id: str = Field(sa_column=Column(String(64), primary_key=True))
    number: int = Field(sa_column=Column(serial(), nullable=False, unique=True))
    status: str = Field(sa_column=Column(String(10), nullable=False))
    created_at: datetime = time_column()
    created_by: str = Field(sa_column=Column(String(100), nullable=False))
    reason: str | None = Field(default=None, sa_column=Column(Words(REASON_CHARS)))
    filters: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    forced: bool = Field(default=False, sa_column=Column(Boolean, nullable=False))
    renews_keys: bool = Field(default=False, sa_column=Column(Boolean, nullable=False))
    items: int = Field(sa_column=Column(Integer, nullable=False))
    predicted: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    digest: str = Field(sa_column=Column(String(64), nullable=False))
    began_at: datetime | None = time_column(nullable=True)
    began_by: str | None = Field(default=None, sa_column=Column(String(100)))
    ended_at: datetime | None = time_column(nullable=True)
    ended_by: str | None = Field(default=None, sa_column=Column(String(100)))


class PlanItemRow(LedgerRow, table=True):
    """One (event, handler) of a plan, with what was predicted for it, as JSON. `turn`: events that may have to do with
    one another have turns of their own, one after the other; those of one turn are sent together."""

    __tablename__ = "plan_items"
    __table_args__ = (
        # What is still to be taken, and nothing else: an item that is sought by its event is not found by it.
        Index("ix_plan_items_pending", "plan", "turn", "seq", postgresql_where=text("status = 'pending'"),
              sqlite_where=text("status = 'pending'")),
    )  # fmt: skip

    plan: str = Field(sa_column=Column(String(64), primary_key=True))
    application: str = application_column(primary_key=True)
    event_id: str = Field(sa_column=Column(String(255), primary_key=True))
    handler: str = Field(sa_column=Column(String(HANDLER_CHARS), primary_key=True))
    seq: int = Field(sa_column=Column(serial(), nullable=False))
    turn: int = Field(sa_column=Column(Integer, nullable=False))
    key: str = Field(sa_column=Column(String(600), nullable=False))
    action: str = Field(sa_column=Column(String(10), nullable=False))
    status: str = Field(sa_column=Column(String(10), nullable=False))
    predicted: str = Field(sa_column=Column(Text, nullable=False))
    taken_at: datetime | None = time_column(nullable=True)
