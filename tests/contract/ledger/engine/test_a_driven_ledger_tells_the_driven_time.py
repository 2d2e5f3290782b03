"""Where a simulator's time is driven, the ledger tells it to everybody who asks what time it is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from consumer.ledger import Database
from consumer.ledger.engine.database_time import drive, shared_clock, shared_time

SOON = timedelta(minutes=1)


async def _ahead(database: Database) -> timedelta:
    async with database.reading() as session:
        return await shared_time(session) - datetime.now(UTC)


async def test_it_is_ahead_by_as_much_as_was_told_last(database: Database) -> None:
    assert abs(await _ahead(database)) < SOON
    for days in (30, 400, 0):
        async with database.transaction() as session:
            await drive(session, timedelta(days=days).total_seconds())
        assert abs(await _ahead(database) - timedelta(days=days)) < SOON
        assert abs((await shared_clock(database)).now() - datetime.now(UTC) - timedelta(days=days)) < SOON
