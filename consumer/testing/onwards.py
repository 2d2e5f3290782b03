"""Onwards: derived events on the workbench, as the relay would publish them when their time has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import Table, func, or_, select, update

from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.handling import outbox
from consumer.ledger.tables import OutboxRow

_OUTBOX: Table = OutboxRow.__table__


@dataclass(frozen=True, kw_only=True)
class Emitted(Event):
    """A derived event as the next handler gets it. `not_before`: it is held back until then; None: it goes at once."""

    not_before: datetime | None = None


def emitted(row: OutboxRow) -> Emitted:
    """The event in a row of the outbox."""
    event = outbox.derived_event(row)
    is_held = row.not_before is not None and row.not_before > row.created_at
    values = {one.name: getattr(event, one.name) for one in fields(Event)}
    return Emitted(**values, not_before=row.not_before if is_held else None)


async def next_due(database: Database, until: datetime) -> datetime | None:
    """When the next event that was not published yet is due, up to this time."""
    at = func.coalesce(_OUTBOX.c.not_before, _OUTBOX.c.created_at)
    waiting = select(func.min(at)).where(_OUTBOX.c.published_at.is_(None), at <= until)
    async with database.reading() as session:
        found: datetime | None = await session.scalar(waiting)
    return found


async def publish_due(database: Database, now: datetime) -> Sequence[Emitted]:
    """The events that are due now, marked as published."""
    due = _OUTBOX.c.published_at.is_(None) & or_(_OUTBOX.c.not_before.is_(None), _OUTBOX.c.not_before <= now)
    async with database.transaction() as session:
        rows = (await session.execute(select(OutboxRow).where(due).order_by(_OUTBOX.c.seq))).scalars().all()
        await session.execute(update(_OUTBOX).where(due).values(published_at=now))
        return [emitted(row) for row in rows]
