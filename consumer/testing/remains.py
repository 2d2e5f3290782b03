"""Remains: what a handler left behind in its own tables, made comparable."""

from __future__ import annotations

from typing import Any

from sqlalchemy import DateTime, Integer, select
from sqlalchemy.types import TypeDecorator
from sqlmodel import SQLModel

from consumer.ledger import Database
from consumer.ledger.base_tables import LedgerRow


async def rows_of(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table that is not the ledger's, sorted; times and numbers that count up are left out."""
    ours = {table.__table__.name for table in LedgerRow.__subclasses__()}
    found: dict[str, list[dict[str, Any]]] = {}
    async with database.reading() as session:
        for name, table in sorted(SQLModel.metadata.tables.items()):
            if name in ours:
                continue
            columns = [column for column in table.columns if not _is_incidental(column)]
            if columns:
                rows = (await session.execute(select(*columns))).mappings()
                kept = sorted((dict(row) for row in rows), key=repr)
                if kept:
                    found[name] = kept
    return found


def _is_incidental(column: Any) -> bool:
    kind = column.type.impl if isinstance(column.type, TypeDecorator) else column.type
    counts_up = bool(column.primary_key) and isinstance(kind, Integer) and column.autoincrement in (True, "auto")
    return isinstance(kind, DateTime) or (counts_up and len(column.table.primary_key.columns) == 1)
