"""Importing: an exported trail into a ledger that has none, entry by entry as they were sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy import Table, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import insert_into
from consumer.errors import ArchiveForeign
from consumer.ledger.plans.tables import PlanRow, PlanStatus
from consumer.ledger.tables import AuditRow, ChainHeadRow

_AUDIT: Table = AuditRow.__table__
_HEAD: Table = ChainHeadRow.__table__
_PLANS: Table = PlanRow.__table__
_ENDS: Final = {"replay.completed": PlanStatus.APPLIED, "replay.cancelled": PlanStatus.CANCELLED}
"""The entries with which a plan is over, and how it stands then."""


async def is_there(session: AsyncSession, number: int, last_hash: str) -> bool:
    """Whether the ledger's trail begins with the one that ends so."""
    same = select(_AUDIT.c.id).where(_AUDIT.c.number == number, _AUDIT.c.hash == last_hash)
    return await session.scalar(same.limit(1)) is not None


async def require_none(session: AsyncSession) -> None:
    """Raises ArchiveForeign when the ledger has a trail of its own."""
    if await session.scalar(select(_AUDIT.c.id).limit(1)) is not None:
        raise ArchiveForeign("the ledger has an audit trail of its own: an exported one goes into an empty ledger only")


async def take_entries(session: AsyncSession, entries: Sequence[Mapping[str, Any]]) -> None:
    """Add entries of a verified export, in their order."""
    await session.execute(insert_into(_AUDIT, _dialect(session)), [_timed(one, "at") for one in entries])


async def take_plans(session: AsyncSession, plans: Sequence[Mapping[str, Any]]) -> None:
    """Add plans of a verified export. What was still to be done of them is not taken along: they are over, and `stand`
    says which of them were before."""
    over = {"status": PlanStatus.CANCELLED.value, "ended_by": "import"}
    rows = [
        _timed(one, "created_at") | {name: orjson.dumps(one[name]) for name in ("filters", "predicted")} | over
        for one in plans
    ]
    await session.execute(insert_into(_PLANS, _dialect(session)), rows)


async def stand(session: AsyncSession) -> None:
    """The plans that came in stand as the entries tell that came in: who began each and who ended it, when, and why."""
    told = select(_AUDIT.c.action, _AUDIT.c.subject, _AUDIT.c.at, _AUDIT.c.actor, _AUDIT.c.reason).where(
        _AUDIT.c.application == "", _AUDIT.c.action.startswith("replay.")
    )
    for action, subject, at, actor, reason in (await session.execute(told.order_by(_AUDIT.c.id))).all():
        known: dict[str, Any] = {"reason": reason} if action in ("replay.planned", "replay.applied") else {}
        if action == "replay.applied":
            known |= {"began_at": at, "began_by": actor}
        elif action in _ENDS:
            known |= {"status": _ENDS[action].value, "ended_at": at, "ended_by": actor}
        if known:
            await session.execute(update(_PLANS).where(_PLANS.c.id == subject.removeprefix("plan:")).values(**known))


async def go_on(session: AsyncSession, number: int, last_hash: str) -> None:
    """The next entry is linked to this one, the last that came in; and ids go on after it."""
    insert = insert_into(_HEAD, _dialect(session)).values(id=1, number=number, hash=last_hash)
    await session.execute(
        insert.on_conflict_do_update(index_elements=["id"], set_={"number": number, "hash": last_hash})
    )
    if _dialect(session) == "postgresql":
        sequence = func.pg_get_serial_sequence("audit", "id")
        newest = select(func.coalesce(func.max(_AUDIT.c.id), 1)).scalar_subquery()
        await session.execute(select(func.setval(sequence, newest)))


def _timed(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**document, name: datetime.fromisoformat(document[name])}


def _dialect(session: AsyncSession) -> str:
    return session.get_bind().dialect.name
