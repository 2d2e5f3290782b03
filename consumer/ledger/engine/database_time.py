"""The database's own time, for comparing clocks, and for what several processes must agree on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import SharedClock
from consumer.columns import insert_into
from consumer.ledger.base_tables import BudgetRow
from consumer.ledger.engine.database import Database

_BUDGETS: Table = BudgetRow.__table__
DRIVEN: Final = "driven_clock_ahead_s"
_AHEAD: Final = "(SELECT value FROM budgets WHERE name = :driven)"
_ON_A_SERVER: Final = text(f"SELECT clock_timestamp(), {_AHEAD}")
_IN_A_FILE: Final = text(f"SELECT strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now'), {_AHEAD}")


async def database_time(session: AsyncSession) -> datetime | None:
    """The time of a PostgreSQL server; None on SQLite, which has no time of its own."""
    if session.get_bind().dialect.name != "postgresql":
        return None
    # Raw: SQLAlchemy's func.now() is the time at which the transaction began.
    found = await session.scalar(text("SELECT clock_timestamp()"))
    return found.astimezone(UTC) if isinstance(found, datetime) else None


async def shared_time(session: AsyncSession) -> datetime:
    """The time that everybody with this database agrees on: the server's; on SQLite that of its one machine. Where a
    simulator's time is driven, it is ahead by as much as was told with `drive`. Raises LedgerError."""
    # Raw: func.now() is the time at which PostgreSQL's transaction began, and whole seconds of SQLite. Both are asked,
    # so that no process brings a clock of its own.
    is_server = session.get_bind().dialect.name == "postgresql"
    found, ahead_s = (await session.execute(_ON_A_SERVER if is_server else _IN_A_FILE, {"driven": DRIVEN})).one()
    now = found if isinstance(found, datetime) else datetime.fromisoformat(str(found))
    return now.astimezone(UTC) + timedelta(seconds=float(ahead_s or 0.0))


async def drive(session: AsyncSession, ahead_s: float) -> None:
    """From now on this ledger's time is so much ahead of its database's, as the simulator's is. Never in production."""
    insert = insert_into(_BUDGETS, session.get_bind().dialect.name).values(name=DRIVEN, value=str(ahead_s))
    told = {"value": insert.excluded.value}
    await session.execute(insert.on_conflict_do_update(index_elements=["name"], set_=told))


async def shared_clock(database: Database) -> SharedClock:
    """A clock that was asked to agree with the database's once: for a command. Raises LedgerError."""
    clock = SharedClock()
    async with database.reading() as session:
        await clock.follow(lambda: shared_time(session))
    return clock
