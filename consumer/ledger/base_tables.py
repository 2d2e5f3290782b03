"""Base tables: what all tables of the ledger are made of, and the three that every role needs: which migrations were
run, what processes agree on, who lives. A `serve` has no others in memory, nor to wait for at its start."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Boolean, Column, Index, Integer, String, Table, Text
from sqlmodel import Field

from consumer.columns import TableRow, UtcDateTime


def time_column(nullable: bool = False) -> Any:
    """An aware UTC time."""
    return Field(default=None, sa_column=Column(UtcDateTime, nullable=nullable))


class LedgerRow(TableRow):
    """The base of the ledger's own tables."""

    __table__: ClassVar[Table]


class RevisionRow(LedgerRow, table=True):
    """A migration that was applied, of any branch. Alembic itself keeps each branch's newest one only, which says
    nothing to code that is older than it."""

    __tablename__ = "revisions"

    id: str = Field(sa_column=Column(String(32), primary_key=True))
    applied_at: datetime = time_column()


class BudgetRow(LedgerRow, table=True):
    """A named short text that processes share and change atomically: a bucket of the request budget, a circuit."""

    __tablename__ = "budgets"

    name: str = Field(sa_column=Column(String(200), primary_key=True))
    value: str = Field(sa_column=Column(Text, nullable=False))


class ProcessRow(LedgerRow, table=True):
    """A process in one of its roles: that it lives, and what it last proved (its checks, as JSON)."""

    __tablename__ = "processes"
    __table_args__ = (Index("ix_processes_seen_at", "seen_at"),)

    process: str = Field(sa_column=Column(String(64), primary_key=True))
    role: str = Field(sa_column=Column(String(10), primary_key=True))
    host: str = Field(sa_column=Column(String(100), nullable=False))
    pid: int = Field(sa_column=Column(Integer, nullable=False))
    version: str = Field(sa_column=Column(String(40), nullable=False))
    started_at: datetime = time_column()
    seen_at: datetime = time_column()
    stopped_at: datetime | None = time_column(nullable=True)
    ready: bool = Field(sa_column=Column(Boolean, nullable=False))
    since: datetime = time_column()
    checks: str = Field(default="{}", sa_column=Column(Text, nullable=False))
    answered: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    refused: int = Field(default=0, sa_column=Column(Integer, nullable=False))
