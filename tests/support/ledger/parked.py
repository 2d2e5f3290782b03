"""Parked: all runs that wait behind nothing, look by look, as a worker finds them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.handling import handlers, lanes, runs


async def release_stranded(session: AsyncSession, now: datetime) -> int:
    """Let them go; how many there were."""
    held = (await handlers.paused(session)).of
    page = await lanes.stranded(session, held=held)
    released = await runs.release(session, page, now)
    while page.after is not None:
        page = await lanes.stranded(session, page.after, held=held)
        released += await runs.release(session, page, now)
    return released
