"""A ledger with a past: hundreds of thousands of finished runs and a backlog, made by the database itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Column, Integer, LargeBinary, Table, TypeDecorator, inspect, text
from sqlalchemy.engine import Connection

from consumer.columns import UtcDateTime
from consumer.ledger import Database

AT = datetime(2026, 1, 1, tzinfo=UTC)
_EVENTS = """
INSERT INTO events (seq, application, id, type, key, trust, source, raw, received_at, recorded_at, delivery_id,
                    order_id)
SELECT n, 'default', 'evt_' || n, 'order.paid', 'order:order-' || (n - n % {per_order}), 'signed', 'webhook', {raw},
       {at}, {at}, '', 'order-' || (n - n % {per_order})
FROM ({numbers}) AS numbers
"""
_RUNS = """
INSERT INTO runs (event_id, application, handler, seq, key, status, blocking, attempts, next_at, code_version,
                  created_at, updated_at)
SELECT 'evt_' || n, 'default', '{handler}', n, 'order:order-' || (n - n % {per_order}), {status}, {blocking},
       {attempts}, {next_at}, '', {at}, {at}
FROM ({numbers}) AS numbers
"""
_LETTERS = """
INSERT INTO dead_letters (application, event_id, handler, died_at, blocking, attempts, code_version)
SELECT 'default', 'evt_' || n, '{handler}', {at}, true, 1, '' FROM ({numbers}) AS numbers
"""
_WORDS: Mapping[str, Mapping[str, str]] = {
    "postgresql": {
        "numbers": "SELECT n FROM generate_series({first}, {last}) AS numbers(n)",
        "at": "TIMESTAMPTZ '2026-01-01 00:00:00+00'",
        "raw": "convert_to('{}' || repeat(' ', 400), 'UTF8')",
    },
    "sqlite": {
        "numbers": "WITH RECURSIVE numbers(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last}) "
        "SELECT n FROM numbers",
        "at": "'2026-01-01 00:00:00.000000'",
        "raw": "CAST('{}' || printf('%400s', '') AS BLOB)",
    },
}


@dataclass(frozen=True, kw_only=True)
class Past:
    """Events number `first` to `last` of `handler`, `per_order` of them about the same order."""

    first: int
    last: int
    handler: str
    per_order: int = 1


async def finished(database: Database, past: Past) -> None:
    """Events whose run succeeded."""
    await _insert(database, past, status="'succeeded'", blocking="false", attempts="1", next_at="NULL")


async def dead(database: Database, past: Past) -> None:
    """Events whose run was given up; the letters are still to be sent."""
    await _insert(database, past, status="'dead'", blocking="true", attempts="1", next_at="NULL")
    words = _WORDS[database.dialect]
    numbers = words["numbers"].format(first=past.first, last=past.last)
    async with database.transaction() as session:
        statement = _LETTERS.format(numbers=numbers, handler=past.handler, at=words["at"])
        await (await session.connection()).exec_driver_sql(statement)


async def waiting(database: Database, past: Past, *, due: datetime = AT) -> None:
    """A backlog as the intake leaves it: the first of each order due then, what comes behind it parked."""
    is_head, at = f"n % {past.per_order} = 0", _WORDS[database.dialect]["at"].replace("2026", f"{due:%Y}")
    status, next_at = f"CASE WHEN {is_head} THEN 'retrying' ELSE 'parked' END", f"CASE WHEN {is_head} THEN {at} END"
    await _insert(database, past, status=status, blocking="true", attempts="0", next_at=next_at)


_ITEMS = """
INSERT INTO plan_items (plan, application, event_id, handler, seq, turn, key, action, status, predicted)
SELECT '{plan}', 'default', 'evt_' || n, '{handler}', n, 0, 'order:order-' || n, 'rerun',
       CASE WHEN n % 2 = 0 THEN 'taken' ELSE 'pending' END, '{{}}'
FROM ({numbers}) AS numbers
"""
_DERIVED = """
INSERT INTO outbox (application, event_id, type, key, data, not_before, created_at, published_at, cause, handler, plan)
SELECT 'default', 'evt_' || n, 'order.paid', 'order:order-' || n, {raw}, {at}, {at}, {at}, 'evt_' || n, '{handler}',
       '{plan}'
FROM ({numbers}) AS numbers
"""
_PLAN = """
INSERT INTO plans (id, number, status, created_at, created_by, filters, forced, renews_keys, items, predicted, digest)
VALUES ('{plan}', 1, 'applying', {at}, 'op', {raw}, true, false, 0, {raw}, '')
"""


async def replayed(database: Database, past: Past, plan: str) -> None:
    """A plan that is being applied to these finished events; each has derived another, which has arrived."""
    words = _WORDS[database.dialect]
    numbers = words["numbers"].format(first=past.first, last=past.last)
    shared = {"at": words["at"], "raw": words["raw"], "numbers": numbers, "handler": past.handler, "plan": plan}
    async with database.transaction() as session:
        connection = await session.connection()
        for statement in (_PLAN, _ITEMS, _DERIVED):
            await connection.exec_driver_sql(statement.format(**shared))
        if await connection.run_sync(_has_marks):
            await connection.exec_driver_sql("UPDATE outbox SET on_way = NULL")
        of_plan = f"seq BETWEEN {past.first} AND {past.last}"
        await connection.exec_driver_sql(f"UPDATE runs SET plan = '{plan}' WHERE {of_plan}")


def _has_marks(connection: Connection) -> bool:
    return any(column["name"] == "on_way" for column in inspect(connection).get_columns("outbox"))


async def _insert(database: Database, past: Past, **columns: str) -> None:
    words = _WORDS[database.dialect]
    numbers = words["numbers"].format(first=past.first, last=past.last)
    shared = {"at": words["at"], "raw": words["raw"], "numbers": numbers, "per_order": past.per_order}
    async with database.transaction() as session:
        for statement in (_EVENTS.format(**shared), _RUNS.format(**shared, handler=past.handler, **columns)):
            await (await session.connection()).exec_driver_sql(statement)
        if database.dialect == "postgresql":
            await session.execute(text("SELECT setval(pg_get_serial_sequence('events', 'seq'), max(seq)) FROM events"))


async def keep_statistics(database: Database) -> None:
    """What the database believes of its tables is what it was told last: nobody looks by himself."""
    if database.dialect == "postgresql":
        async with database.transaction() as session:
            for table in await session.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")):
                await session.execute(text(f'ALTER TABLE "{table}" SET (autovacuum_enabled = false)'))


async def take_statistics(database: Database, *, when: bool = True) -> None:
    """What autovacuum does now and then; SQLite has nobody who would."""
    if when and database.dialect == "postgresql":
        async with database.engine.connect() as connection:
            by_itself = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await by_itself.execute(text("VACUUM ANALYZE"))


async def fill(
    database: Database, tables: Iterable[Table], count: int, *, first: int = 1_000_000, is_open: bool = False
) -> None:
    """So many rows in each of these tables, of another object each, as they are long after, published, closed; or as
    they are before that (`is_open`; what is to be sent is of another application then, where no relay waits for it)."""
    words = _WORDS[database.dialect]
    numbers = words["numbers"].format(first=first, last=first + count - 1)
    async with database.transaction() as session:
        for table in tables:
            columns = {column.name: _past(column, words["at"], is_open) for column in table.columns}
            if is_open and table.name == "outbox":
                columns["application"] = "'other'"
            if table.name == "outbox":
                columns["on_way"] = "NULL"  # its default is for code that knows no marks
            kept = {name: value for name, value in columns.items() if value is not None}
            statement = (
                f"INSERT INTO {table.name} ({', '.join(kept)}) SELECT {', '.join(kept.values())} FROM ({numbers}) AS n"
            )
            await (await session.connection()).exec_driver_sql(statement)


def _past(column: Column[Any], at: str, is_open: bool) -> str | None:
    """What a row has in this column; None: nothing."""
    if column.name == "application":
        return "'default'"
    if column.name == "kind":
        return "'order'"
    if column.nullable and (column.name not in _KNOWN_LATER or (is_open and column.name.endswith("_at"))):
        return None
    is_ours = isinstance(column.type, TypeDecorator) and not isinstance(column.type, UtcDateTime)
    match column.type.impl if is_ours else column.type:  # type: ignore[attr-defined]  # a decorator has what it decorates
        case UtcDateTime():
            return at
        case Boolean():
            return "false"
        case JSON():
            return "'[]'"
        case LargeBinary():
            return "CAST('{}' AS BYTEA)" if "TIMESTAMPTZ" in at else "CAST('{}' AS BLOB)"
        case Integer() | BigInteger():
            return "n"
        case _:
            return "'past_' || n" if getattr(column.type, "length", None) not in range(1, 13) else "'past'"


_KNOWN_LATER = (
    "published_at",
    "closed_at",
    "order_id",
    "subscription_id",
    "customer",
    "event_id",
    "session_id",
)
