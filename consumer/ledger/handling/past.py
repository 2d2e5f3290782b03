"""The past: what the ledger keeps of how events were handled, for deriving a plugin's tables again (case G9)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Table, and_, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import BodiesArchived
from consumer.events import Event
from consumer.ledger.handling.events import to_event
from consumer.ledger.tables import AuditRow, EventRow, OutboxRow, RunRow, RunStatus
from consumer.plugin import Emission

_EVENTS: Table = EventRow.__table__
_RUNS: Table = RunRow.__table__
_AUDIT: Table = AuditRow.__table__
_OUTBOX: Table = OutboxRow.__table__


@dataclass(frozen=True)
class Note:
    """A change as the audit trail has it; `id` is its place among all changes."""

    id: int
    at: datetime
    actor: str
    action: str
    reason: str | None
    after: str | None


@dataclass(frozen=True)
class Handled:
    """A run that succeeded: the event with its place, the handler, the plan, and when it was done."""

    event: Event
    seq: int
    handler: str
    plan: str | None
    at: datetime


@dataclass(frozen=True)
class Contents:
    """How many rows a table has, and a digest over them in the order of their keys."""

    rows: int
    digest: str


async def notes(session: AsyncSession, application: str) -> Sequence[Note]:
    """All changes of an application, in their order."""
    columns = (_AUDIT.c.id, _AUDIT.c.at, _AUDIT.c.actor, _AUDIT.c.action, _AUDIT.c.reason, _AUDIT.c.after)
    rows = await session.execute(select(*columns).where(_AUDIT.c.application == application).order_by(_AUDIT.c.id))
    return [Note(*row) for row in rows]


async def handled(session: AsyncSession, application: str, handlers: Collection[str]) -> Sequence[Handled]:
    """The runs of these handlers that succeeded. Raises BodiesArchived."""
    same = and_(_RUNS.c.application == _EVENTS.c.application, _RUNS.c.event_id == _EVENTS.c.id)
    done = (
        select(EventRow, _RUNS.c.handler, _RUNS.c.plan, _RUNS.c.updated_at)
        .join(_RUNS, same)
        .where(
            _EVENTS.c.application == application,
            _RUNS.c.status == RunStatus.SUCCEEDED.value,
            _RUNS.c.handler.in_(sorted(handlers)),
        )
    )
    found = (await session.execute(done)).all()
    if archives := sorted({row.archive for row, *_ in found if row.archive is not None}):
        raise BodiesArchived(files=len(archives), first=archives[0], last=archives[-1])
    return [Handled(to_event(row), row.seq, name, plan, at) for row, name, plan, at in found]


async def emitted(session: AsyncSession, application: str) -> Mapping[tuple[str, str], list[Emission]]:
    """(event id, handler) to what it was the first to emit."""
    found: dict[tuple[str, str], list[Emission]] = {}
    rows = select(_OUTBOX).where(_OUTBOX.c.application == application).order_by(_OUTBOX.c.seq)
    for row in (await session.execute(rows)).mappings():
        one = Emission(id=row["event_id"], type=row["type"], key=row["key"], data=orjson.loads(row["data"]))
        found.setdefault((row["cause"], row["handler"]), []).append(one)
    return found


async def clear(session: AsyncSession, table: Table, application: str) -> None:
    """Delete an application's rows of a plugin's table."""
    await session.execute(delete(table).where(table.c.application == application))


async def contents(session: AsyncSession, table: Table, application: str) -> Contents:
    """What an application has in a table. Read as a stream."""
    wanted = select(table).where(table.c.application == application).order_by(*table.primary_key.columns)
    count, seen = 0, hashlib.sha256()
    async for row in await session.stream(wanted):
        count += 1
        seen.update(repr(tuple(row)).encode())
    return Contents(count, seen.hexdigest())


async def applications(session: AsyncSession) -> Sequence[str]:
    """The applications of which something was recorded."""
    found: Sequence[Any] = (await session.execute(select(_EVENTS.c.application).distinct())).scalars().all()
    return sorted(found)
