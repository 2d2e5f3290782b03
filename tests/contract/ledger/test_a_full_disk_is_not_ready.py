"""A ledger that reads and takes no write is not ready, until it takes one again."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from consumer.errors import LedgerError
from consumer.ledger import Database
from tests.support.ports import answers

FULL = "CREATE TRIGGER full_disk BEFORE INSERT ON budgets BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
WRITE = "INSERT INTO budgets (name, value) VALUES ('a', 'x')"


async def test_a_full_disk_is_not_ready(sqlite_ledger: Database) -> None:
    # case: O8
    assert await answers(sqlite_ledger)
    async with sqlite_ledger.transaction() as session:
        await session.execute(text(FULL))
    with pytest.raises(LedgerError):
        async with sqlite_ledger.transaction() as session:
            await session.execute(text(WRITE))
    assert not await answers(sqlite_ledger)
    async with sqlite_ledger.reading() as session:
        assert (await session.execute(text("SELECT count(*) FROM budgets"))).scalar_one() == 0
    async with sqlite_ledger.engine.begin() as connection:
        await connection.execute(text("DROP TRIGGER full_disk"))
    assert await answers(sqlite_ledger)
