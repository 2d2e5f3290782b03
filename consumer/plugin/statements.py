"""Statements of `Context`: built once for each table, and then only given their values: building one costs several
times what the database takes for it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    Executable,
    FromClause,
    Table,
    bindparam,
    false,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Mapper

from consumer.columns import insert_into

KEPT = 500
"""So many statements of each kind are kept; there are a few for each table."""

_CURRENT = "pg_current_xact_id()::text::bigint"
# xmin is the lower half of its transaction's number, which lies next to the current one.
_WROTE = f"pg_xact_status(({_CURRENT} + ((({{}}::text::bigint - {_CURRENT}) << 32) >> 32))::text::xid8) = 'in progress'"

Sent = tuple[Executable, dict[str, Any]]
"""A statement, and the values it is sent with."""


def inserting(table: Table, dialect: str, values: Mapping[str, Any]) -> Sent:
    """Insert a row unless a row with one of its unique keys is there; returns a row if it was not."""
    statement = _insert(table, dialect)
    if any(isinstance(value, ClauseElement) for value in values.values()):
        return statement.values(**values), {}  # `func.now()` and the like are part of the statement
    return statement, dict(values)


def locking(table: FromClause, key: Mapping[str, Any]) -> Sent:
    """The row with this key, locked."""
    if any(value is None or isinstance(value, ClauseElement) for value in key.values()):
        return select(table).where(*[table.c[name] == value for name, value in key.items()]).with_for_update(), {}
    return _lock(table, tuple(key)), dict(key)


def locking_these(mapper: Mapper[Any], names: Collection[str], keys: Collection[tuple[Any, ...]]) -> Executable:
    """The keys of these rows of a model, each locked as an UPDATE of what is no key locks it, in one order on every
    worker; behind each its attributes of these names."""
    key = mapper.primary_key
    attributes = [mapper.column_attrs[name].columns[0] for name in names]
    found = select(*key, *attributes).select_from(mapper.persist_selectable)
    return found.where(tuple_(*key).in_(keys)).order_by(*key).with_for_update(key_share=True)


def written_here(mapper: Mapper[Any], key: tuple[Any, ...]) -> Executable:
    """Whether this transaction, or a savepoint of it, wrote the row of a model as it is now; PostgreSQL's alone. What
    can be seen of one that is in progress is one's own. Of a view nobody can tell."""
    quoted = postgresql.dialect().identifier_preparer.format_table  # type: ignore[no-untyped-call]  # it has no types
    wrote: list[ColumnElement[bool]] = [
        literal_column(_WROTE.format(f"{quoted(one)}.xmin")) for one in mapper.tables if isinstance(one, Table)
    ]
    found = select(or_(false(), *wrote)).select_from(mapper.persist_selectable)
    return found.where(tuple_(*mapper.primary_key).in_([key]))


@lru_cache(KEPT)
def _insert(table: Table, dialect: str) -> Any:
    key = next(iter(table.primary_key.columns))
    return insert_into(table, dialect).on_conflict_do_nothing().returning(key)


@lru_cache(KEPT)
def _lock(table: FromClause, names: tuple[str, ...]) -> Executable:
    return select(table).where(*[table.c[name] == bindparam(name) for name in names]).with_for_update()
