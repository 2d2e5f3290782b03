"""SQLite's driver: a statement makes one trip to its thread, and what it returns and leaves is as it was with four."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from queue import SimpleQueue
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from consumer.ledger import Database, sqlite_driver
from consumer.ledger.sqlite_driver import AT_ONCE

LENGTHS = (0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE)


async def _filled(connection: AsyncConnection, count: int) -> None:
    await connection.execute(text("CREATE TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY, even BOOLEAN)"))
    await connection.execute(text("DELETE FROM numbers"))
    if count:
        rows = [{"n": number, "even": number % 2 == 0} for number in range(count)]
        await connection.execute(text("INSERT INTO numbers VALUES (:n, :even)"), rows)


@pytest.mark.parametrize("count", LENGTHS)
async def test_every_row_comes_once(sqlite_ledger: Database, count: int) -> None:
    asked = text("SELECT n FROM numbers ORDER BY n")
    async with sqlite_ledger.engine.begin() as connection:
        await _filled(connection, count)
        assert (await connection.execute(asked)).scalars().all() == list(range(count))
        assert [n async for (n,) in await connection.stream(asked)] == list(range(count))
        some = await connection.stream(asked)
        assert [row.n for row in await some.fetchmany(7)] == list(range(min(7, count)))
        assert [row.n for row in await some.fetchall()] == list(range(min(7, count), count))
        assert (await connection.execute(asked)).first() == ((0,) if count else None)


@pytest.mark.parametrize("count", LENGTHS)
async def test_it_says_how_many_it_changed(sqlite_ledger: Database, count: int) -> None:
    async with sqlite_ledger.engine.begin() as connection:
        await _filled(connection, count)
        changed = await connection.execute(text("UPDATE numbers SET even = NOT even"))
        assert changed.rowcount == count
        returned = await connection.execute(text("DELETE FROM numbers RETURNING n"))
        assert len(returned.all()) == count


async def test_a_result_that_is_left_half_read_keeps_nobody_out(sqlite_ledger: Database) -> None:
    async with sqlite_ledger.engine.begin() as connection:
        await _filled(connection, 3 * AT_ONCE)
    async with sqlite_ledger.engine.begin() as connection:
        rows = await connection.stream(text("SELECT n FROM numbers"))
        await rows.fetchone()
        await rows.close()
        await connection.execute(text("DELETE FROM numbers"))
    async with sqlite_ledger.transaction() as session:
        assert await session.scalar(text("SELECT count(*) FROM numbers")) == 0


async def test_a_failed_statement_leaves_the_transaction_as_it_was(sqlite_ledger: Database) -> None:
    async with sqlite_ledger.engine.begin() as connection:
        await _filled(connection, 2)
        with pytest.raises(IntegrityError):
            await connection.execute(text("INSERT INTO numbers VALUES (1, 1)"))
        assert (await connection.execute(text("SELECT count(*) FROM numbers"))).scalar() == 2


async def test_a_statement_is_one_trip(sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: Counter[str] = Counter()
    real = sqlite_driver.Connection._execute

    async def counted(self: Any, function: Any, *given: Any, **named: Any) -> Any:
        trips[getattr(function, "__name__", "?")] += 1
        return await real(self, function, *given, **named)  # type: ignore[no-untyped-call]  # aiosqlite has no types for it

    async with sqlite_ledger.engine.connect() as connection:
        await _filled(connection, 10)
        monkeypatch.setattr(sqlite_driver.Connection, "_execute", counted)
        for _ in range(5):
            await connection.execute(text("SELECT n FROM numbers"))
        monkeypatch.undo()
    assert trips == {"_executed": 5}


async def test_who_only_reads_begins_with_the_first_statement(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: Counter[str] = Counter()
    real = sqlite_driver.Connection._execute

    async def counted(self: Any, function: Any, *given: Any, **named: Any) -> Any:
        trips[getattr(function, "__name__", "?")] += 1
        return await real(self, function, *given, **named)  # type: ignore[no-untyped-call]  # aiosqlite has no types for it

    async with sqlite_ledger.reading() as session:
        await session.execute(text("SELECT 1"))  # the connection is there
    monkeypatch.setattr(sqlite_driver.Connection, "_execute", counted)
    async with sqlite_ledger.reading() as session:
        await session.execute(text("SELECT 1"))
    async with sqlite_ledger.reading() as session:
        await session.connection()
    monkeypatch.undo()
    assert trips == {"_executed": 1, "rollback": 1}


async def test_all_that_is_read_in_one_session_is_of_one_moment(sqlite_ledger: Database) -> None:
    async with sqlite_ledger.engine.begin() as connection:
        await _filled(connection, 3)
    counted = text("SELECT count(*) FROM numbers")
    async with sqlite_ledger.reading() as session:
        assert await session.scalar(counted) == 3
        async with sqlite_ledger.transaction() as writing:
            await writing.execute(text("DELETE FROM numbers"))
        assert await session.scalar(counted) == 3
    async with sqlite_ledger.reading() as session:
        assert await session.scalar(counted) == 0


def test_the_thread_of_a_command_that_is_over_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    loop = asyncio.new_event_loop()
    waits: SimpleQueue[Any] = SimpleQueue()
    waits.put((loop.create_future(), lambda: 1))
    loop.close()
    thread = threading.Thread(target=sqlite_driver._served, args=(waits,))
    thread.start()
    thread.join(10)
    assert (thread.is_alive(), said) == (False, [])


async def test_who_is_cut_off_in_a_statement_keeps_no_lock_by_what_is_left_of_it(sqlite_ledger: Database) -> None:
    """A cursor that is not read to its end keeps SQLite's connection open behind its close; tracebacks keep cursors."""
    path = sqlite_ledger.path
    async with sqlite_ledger.engine.begin() as connection:
        await _filled(connection, 0)
    cut_off = sqlite_driver.connection(str(path), timeout=1.0)
    await cut_off
    cut_off.begin_with_next("BEGIN IMMEDIATE")
    left = cut_off.cursor()
    await left.execute(
        "WITH RECURSIVE found(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM found LIMIT 1000)"
        " INSERT INTO numbers SELECT n, 1 FROM found RETURNING n"
    )
    ended = cut_off.stop()
    assert ended is not None
    await ended
    async with sqlite_ledger.engine.begin() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM numbers")) == 0
        await _filled(connection, 1)
    del left
