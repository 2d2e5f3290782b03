"""A new ledger or log is opened by several at once, as roles that start together do: all of them get in."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from consumer.broker.embedded.file import LogFile
from consumer.ledger import sqlite_driver

AT_ONCE, ROUNDS = 3, 20


async def as_a_ledger(path: Path) -> None:
    await asyncio.to_thread(path.touch)
    connection = await sqlite_driver.connection(str(path), timeout=15.0)
    await connection.close()


async def as_a_log(path: Path) -> None:
    log = LogFile(path)
    await log.open()
    await log.close(5.0)


@pytest.mark.parametrize("opened", [as_a_ledger, as_a_log])
async def test_nobody_is_shut_out(opened: Callable[[Path], Awaitable[None]], tmp_path: Path) -> None:
    """SQLite's own timeout does not hold where each of them would put the file into WAL mode."""
    for number in range(ROUNDS):
        path = tmp_path / f"{number}.db"
        await asyncio.gather(*(opened(path) for _ in range(AT_ONCE)))
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
