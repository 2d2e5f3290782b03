"""The database's own time, for comparing clocks."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession


async def database_time(session: AsyncSession) -> datetime | None:
    """The time of a PostgreSQL server; None on SQLite, which has no time of its own."""
    if session.get_bind().dialect.name != "postgresql":
        return None
    # Raw: SQLAlchemy's func.now() is the time at which the transaction began.
    found = await session.scalar(text("SELECT clock_timestamp()"))
    return found.astimezone(UTC) if isinstance(found, datetime) else None
