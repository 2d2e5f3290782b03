"""The database's own time, for comparing clocks, and for what several processes must agree on."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import SharedClock
from consumer.ledger.engine.database import Database


async def database_time(session: AsyncSession) -> datetime | None:
    """The time of a PostgreSQL server; None on SQLite, which has no time of its own."""
    if session.get_bind().dialect.name != "postgresql":
        return None
    # Raw: SQLAlchemy's func.now() is the time at which the transaction began.
    found = await session.scalar(text("SELECT clock_timestamp()"))
    return found.astimezone(UTC) if isinstance(found, datetime) else None


async def shared_time(session: AsyncSession) -> datetime:
    """The time that everybody with this database agrees on: the server's; on SQLite that of its one machine."""
    found = await database_time(session)
    if found is not None:
        return found
    # Raw: func.now() is whole seconds. Asked of SQLite, so that no process brings a clock of its own.
    told = await session.scalar(text("SELECT strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now')"))
    return datetime.fromisoformat(str(told))


async def shared_clock(database: Database) -> SharedClock:
    """A clock that was asked to agree with the database's once: for a command. Raises LedgerError."""
    clock = SharedClock()
    async with database.reading() as session:
        await clock.follow(lambda: shared_time(session))
    return clock
