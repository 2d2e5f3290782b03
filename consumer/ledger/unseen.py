"""How many observed objects no walk has seen lately, without touching any."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.tables import ObservationRow

_OBSERVATIONS: Table = ObservationRow.__table__


async def count(session: AsyncSession, application: str, kind: str, before: datetime, *, unless: str) -> int:
    """How many were last read before then, unless their state begins with `unless` (see reads.unseen)."""
    statement = (
        select(func.count())
        .select_from(_OBSERVATIONS)
        .where(
            _OBSERVATIONS.c.application == application,
            _OBSERVATIONS.c.kind == kind,
            _OBSERVATIONS.c.read_at < before,
            _OBSERVATIONS.c.state.not_like(f"{unless}%"),
        )
    )
    return (await session.execute(statement)).scalar_one()
