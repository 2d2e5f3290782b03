"""Shape: whether a database and its tables give what this code needs, whatever its revisions are called (case O9).

A database may be ahead of the code. Most steps ahead harm nobody: a new table, a new column that may be left out. One
that renamed or dropped a column, or that asks for a value this code does not know of, does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from sqlalchemy import Table, inspect
from sqlalchemy.engine import Connection
from sqlmodel import SQLModel

from consumer.errors import DatabaseNotUtf8, LedgerError, SchemaIncompatible, SchemaOutdated
from consumer.ledger.base_tables import LedgerRow
from consumer.ledger.engine.branches import of_merchants

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


def refusal(
    missing: Collection[str], lacking: Sequence[str], unknown: Collection[str], labels: Collection[str]
) -> LedgerError | None:
    """What keeps this version from these tables; None where they suit. `missing`: its revisions that were not run.
    `lacking`: what the tables do not give. `unknown`: revisions that were run, and that it does not have. `labels`: its
    branches. Pure, but for which of these are merchants'. Where a merchant's models are ahead of its migrations no
    version gives what they need."""
    if missing:
        return SchemaOutdated(missing=",".join(sorted(missing)))
    if not lacking:
        return None
    told = ",".join(lacking)
    owners = {owner_of(one, labels) for one in lacking}
    plugins = sorted(owner for owner in owners if owner in of_merchants())
    if len(plugins) < len(owners) or any(one.rpartition("_")[0] in plugins for one in unknown):
        return SchemaIncompatible(lacking=told)
    cures = " and ".join(f"`consumer db revision {plugin} -m TEXT`" for plugin in plugins)
    text = f"The models of {', '.join(plugins)} need what no migration makes: {cures} writes it, `db upgrade` runs it."
    return SchemaIncompatible(text, lacking=told)


def require_utf8(encoding: str) -> None:
    """Raises DatabaseNotUtf8. SQL_ASCII counts bytes for characters, others lack some."""
    if encoding != "UTF8":
        raise DatabaseNotUtf8(encoding=encoding)


def needed(labels: Collection[str]) -> Iterable[Table]:
    """The ledger's tables, and those of these branches that are loaded."""
    import_module("consumer.ledger.tables")  # who asked may have had none but the base ones
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
