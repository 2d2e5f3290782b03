"""Samples: the newest deliveries that wait or lie in quarantine, with their bodies: they tell how the service sends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import unpacked_within
from consumer.ledger.tables import HintRow, QuarantineRow

_HINTS: Table = HintRow.__table__
_QUARANTINE: Table = QuarantineRow.__table__

BODY_MAX: Final = 64 * 1024
"""A larger body is no sample: the service's events are a few thousand bytes, and a stranger's may be anything."""


class Sample(NamedTuple):
    """One delivery as it came."""

    delivery_id: str
    body: bytes
    headers: str
    received_at: datetime


async def waiting(session: AsyncSession, application: str, limit: int) -> Sequence[Sample]:
    """Of the newest that wait to be confirmed, newest first."""
    return await _newest(session, _HINTS, application, limit)


async def quarantined(session: AsyncSession, application: str, limit: int) -> Sequence[Sample]:
    """Of the newest in quarantine, newest first."""
    return await _newest(session, _QUARANTINE, application, limit)


async def _newest(session: AsyncSession, table: Table, application: str, limit: int) -> Sequence[Sample]:
    columns = table.c
    newest_first = columns.received_at.desc() if table is _HINTS else columns.id.desc()
    wanted = select(columns.delivery_id, columns.raw, columns.headers, columns.received_at).where(
        columns.application == application, func.length(columns.raw) <= BODY_MAX
    )
    rows = await session.execute(wanted.order_by(newest_first).limit(limit))
    bodies = ((row, unpacked_within(row.raw, BODY_MAX)) for row in rows)
    return [Sample(row.delivery_id, body, row.headers, row.received_at) for row, body in bodies if body is not None]
