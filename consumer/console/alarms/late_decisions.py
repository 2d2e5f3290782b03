"""Late decisions: an order to be fulfilled, access to be opened or closed, that a handler was not given or has put off
for long. Somebody paid and does not get it, or goes on after the end, and no dead run says so.

A run that is put off (`RetryLater`, many attempts) is neither due nor dead. What came while its handler was not
installed has no run at all, and nobody makes one when it comes back. Of orders, what nobody took or has not done is
told by their own alarm (`unfulfilled.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, Table, func, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.handling import handlers, lanes
from consumer.ledger.tables import EventRow, HandlerRow, RunRow, RunStatus
from handlers.access.decisions import GRANTED, REVOKED
from handlers.fulfilment.store import REQUESTED

EVENTS: Table = EventRow.__table__
RUNS: Table = RunRow.__table__
OF_ACCESS: Final = (GRANTED, REVOKED)
DECIDES: Final = "access:subscription"
LATE: Final = timedelta(minutes=15)
LOOKED_BACK: Final = timedelta(days=7)
"""What a handler was not given before is history: it may have been away on purpose."""
NEW_FOR: Final = timedelta(seconds=10)
"""So long others may not have heard of a handler that is new."""
NEWEST: Final = 1_000
"""So many are looked at, of each handler."""
MISSED: Final = "missed"


@dataclass(frozen=True, kw_only=True)
class LateDecision:
    """So many decisions of one application that this handler has not done; `reason`: `retrying`, `parked`, or `missed`
    where it was not given them. The oldest is of `oldest_at`."""

    application: str
    handler: str
    reason: str
    count: int
    oldest_at: datetime


async def late_decisions(session: AsyncSession, now: datetime) -> list[LateDecision]:
    """Handler by handler; empty when all is well. What is dead is told as that. `now`: the database's."""
    rows = await handlers.everyone(session)
    living = await handlers.living(session, now)
    wanted: list[tuple[str, str, Select[Any]]] = []
    for handler in sorted({DECIDES, *(row.name for row in rows if any(_names(row, one) for one in OF_ACCESS))}):
        wanted += [
            (handler, status.value, _waiting(handler, status, now - LATE))
            for status in (RunStatus.RETRYING, RunStatus.PARKED)
        ]
    for row in rows:
        since = max(row.first_seen_at + NEW_FOR, now - LOOKED_BACK)
        types = [one for one in (REQUESTED, *OF_ACCESS) if row.name in living and _names(row, one)]
        wanted += [(row.name, MISSED, _missed(row.name, one, since, now - LATE)) for one in types]
    return [
        LateDecision(application=application, handler=handler, reason=reason, count=count, oldest_at=oldest_at)
        for handler, reason, statement in wanted
        for application, count, oldest_at in await session.execute(statement)
    ]


def _names(row: HandlerRow, type_: str) -> bool:
    """Whether it is for such decisions, and not for all that happens."""
    return not {type_, f"{type_.partition('.')[0]}.*"}.isdisjoint(row.types.split())


def _waiting(handler: str, status: RunStatus, before: datetime) -> Select[Any]:
    """Among those put off for longest: what is due is told as overdue."""
    mine = select(RUNS.c.application, RUNS.c.event_id, RUNS.c.created_at).where(
        lanes.is_status(status), RUNS.c.handler == handler
    )
    first = mine.order_by(RUNS.c.next_at.desc()).limit(NEWEST) if status is RunStatus.RETRYING else mine.limit(NEWEST)
    run = first.subquery()
    event = (EVENTS.c.application == run.c.application) & (EVENTS.c.id == run.c.event_id)
    counts = true() if handler == DECIDES else select(EVENTS.c.type).where(event).scalar_subquery().in_(OF_ACCESS)
    found = select(run.c.application, func.count(), func.min(run.c.created_at))
    return found.where(run.c.created_at < before, counts).group_by(run.c.application)


def _missed(handler: str, type_: str, since: datetime, before: datetime) -> Select[Any]:
    """Among the newest of this type."""
    columns = (EVENTS.c.application, EVENTS.c.id, EVENTS.c.recorded_at, EVENTS.c.received_at)
    newest = select(*columns).where(EVENTS.c.type == type_).order_by(EVENTS.c.seq.desc()).limit(NEWEST).subquery()
    run = select(RUNS.c.event_id).where(
        RUNS.c.event_id == newest.c.id, RUNS.c.application == newest.c.application, RUNS.c.handler == handler
    )
    lately = (newest.c.recorded_at > since, newest.c.recorded_at < before)
    found = select(newest.c.application, func.count(), func.min(newest.c.received_at))
    return found.where(*lately, run.scalar_subquery().is_(None)).group_by(newest.c.application)
