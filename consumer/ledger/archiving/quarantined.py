"""Quarantined: what lies in quarantine as records of an archive of everything. It may be somebody's money."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import insert_into
from consumer.ledger.archiving.documents import document
from consumer.ledger.tables import QuarantineRow

_QUARANTINE: Table = QuarantineRow.__table__


async def quarantined(session: AsyncSession, after: int, limit: int) -> tuple[Sequence[dict[str, Any]], int | None]:
    """The next ones after this number; and after which to ask on, None at the end."""
    wanted = select(_QUARANTINE).where(_QUARANTINE.c.id > after).order_by(_QUARANTINE.c.id).limit(limit)
    page = (await session.execute(wanted)).mappings().all()
    found = [{"quarantine": document(_QUARANTINE, dict(row))} for row in page]
    return found, page[-1]["id"] if len(page) == limit else None


async def take_in(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> None:
    """Put them into quarantine under numbers of this ledger; what lies there already stays as it is."""
    if rows:
        news = [{name: value for name, value in row.items() if name != "id"} for row in rows]
        await session.execute(insert_into(_QUARANTINE, session.get_bind().dialect.name).on_conflict_do_nothing(), news)
