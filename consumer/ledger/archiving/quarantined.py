"""Quarantined: what lies in quarantine as records of an archive of everything. It may be somebody's money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import insert_into, unpacked
from consumer.ledger.archiving.documents import document
from consumer.ledger.engine.chunks import matching
from consumer.ledger.reading.quarantine import DISCARDED
from consumer.ledger.tables import AuditRow, QuarantineRow

_AUDIT: Table = AuditRow.__table__
_QUARANTINE: Table = QuarantineRow.__table__


async def quarantined(session: AsyncSession, after: int, limit: int) -> tuple[Sequence[dict[str, Any]], int | None]:
    """The next ones after this number; and after which to ask on, None at the end."""
    wanted = select(_QUARANTINE).where(_QUARANTINE.c.id > after).order_by(_QUARANTINE.c.id).limit(limit)
    page = (await session.execute(wanted)).mappings().all()
    found = [{"quarantine": document(_QUARANTINE, dict(row) | {"raw": unpacked(row["raw"])})} for row in page]
    return found, page[-1]["id"] if len(page) == limit else None


async def take_in(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> None:
    """Put them into quarantine under numbers of this ledger; what lies there already stays as it is, and what was
    thrown away since it came stays away."""
    gone = await _thrown_away(session, rows)
    news = [{name: value for name, value in row.items() if name != "id"} for row in rows if _named(row) not in gone]
    if news:
        await session.execute(insert_into(_QUARANTINE, session.get_bind().dialect.name).on_conflict_do_nothing(), news)


async def _thrown_away(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> frozenset[tuple[str, str]]:
    """Those of which the trail tells so. One that came anew since, under the same id, nobody has decided about."""
    came = {_named(row): row["created_at"] for row in rows}
    gone = set[tuple[str, str]]()
    notes = select(_AUDIT.c.application, _AUDIT.c.subject, _AUDIT.c.at).where(_AUDIT.c.action == DISCARDED)
    for where in matching(_AUDIT.c.subject, (_AUDIT.c.application,), ((subject, name) for name, subject in came)):
        found = (await session.execute(notes.where(where))).all()
        gone |= {(name, subject) for name, subject, at in found if at >= came[name, subject]}
    return frozenset(gone)


def _named(row: Mapping[str, Any]) -> tuple[str, str]:
    """As the trail names it."""
    return row["application"], f"delivery:{row['delivery_id']}"
