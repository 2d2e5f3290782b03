"""Shape: whether the tables of a database give what this code needs, whatever its revisions are called (case O9).

A database may be ahead of the code. Most steps ahead harm nobody: a new table, a new column that may be left out. One
that renamed or dropped a column, or that asks for a value this code does not know of, does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Table, inspect
from sqlalchemy.engine import Connection
from sqlmodel import SQLModel

from consumer.ledger.tables import LedgerRow

TOLD_MAX: Final = 5


def missing_of(connection: Connection, labels: Collection[str]) -> tuple[str, ...]:
    """What this code needs and the database does not give: `table`, `table.column`; bounded. The ledger's tables are
    looked at, and those of the branches `labels` that are loaded (their names begin with the branch's)."""
    tables = list(needed(labels))
    found = inspect(connection).get_multi_columns(filter_names=[table.name for table in tables])
    columns = {name: listed for (_, name), listed in found.items()}
    return tuple(line for table in tables for line in _lacking(table, columns.get(table.name)))[:TOLD_MAX]


def owner_of(lacking: str, labels: Collection[str]) -> str | None:
    """The branch whose table a line of `missing_of` is about; None for one of the ledger's."""
    return max((label for label in labels if lacking.startswith(f"{label}_")), key=len, default=None)


def needed(labels: Collection[str]) -> Iterable[Table]:
    """The ledger's tables, and those of these branches that are loaded."""
    own = {table.name for one in LedgerRow.__subclasses__() if (table := getattr(one, "__table__", None)) is not None}
    prefixes = tuple(f"{label}_" for label in labels)
    for name, table in sorted(SQLModel.metadata.tables.items()):
        if name in own or name.startswith(prefixes):
            yield table


def _lacking(table: Table, found: Iterable[Mapping[str, Any]] | None) -> Iterable[str]:
    if found is None:
        yield table.name
        return
    there = {column["name"]: column for column in found}
    yield from (f"{table.name}.{column.name}" for column in table.columns if column.name not in there)
    for name, column in there.items():
        asks = not column["nullable"] and column.get("default") is None and column.get("autoincrement") is not True
        if name not in table.columns and asks:
            yield f"{table.name}.{name} (must be given a value)"
