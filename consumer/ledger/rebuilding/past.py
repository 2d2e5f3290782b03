"""The past: what the ledger keeps of how events were handled, for deriving a plugin's tables again (case G9)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, Subquery, Table, and_, case, delete, false, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import unindexed
from consumer.errors import BodiesArchived
from consumer.ledger.tables import AuditRow, EventRow, OutboxRow, RunRow, RunStatus
from consumer.plugin import Emission

_EVENTS: Table = EventRow.__table__
_RUNS: Table = RunRow.__table__
_AUDIT: Table = AuditRow.__table__
_OUTBOX: Table = OutboxRow.__table__
ACTOR_CHARS: Final = 100
"""So much of a handler's name stands in the audit trail."""
_STREAMED: Final = {"yield_per": 200}


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
    """A run that succeeded: its event, that one's place and key, the handler, the plan, and when it was done. `place`:
    the number of the first change that it noted, None when it noted none. `emitted`: what it was the first to emit,
    without its data, as all of it is sorted."""

    event_id: str
    seq: int
    key: str
    handler: str
    plan: str | None
    at: datetime
    place: int | None
    emitted: Sequence[Emission]


@dataclass(frozen=True)
class Contents:
    """How many rows a table has, and by column a digest over them in the order of their keys."""

    rows: int
    digests: Mapping[str, str]


async def require_bodies(session: AsyncSession, application: str, handlers: Collection[str]) -> None:
    """Raises BodiesArchived when an event of these runs has its body in an archive."""
    same = and_(_RUNS.c.application == _EVENTS.c.application, _RUNS.c.event_id == _EVENTS.c.id)
    wanted = select(_EVENTS.c.archive).join(_RUNS, same).where(*_succeeded(application, handlers))
    archives = sorted(await session.scalars(wanted.where(_EVENTS.c.archive.is_not(None)).distinct()))
    if archives:
        raise BodiesArchived(files=len(archives), first=archives[0], last=archives[-1])


async def done_by(session: AsyncSession) -> Sequence[str]:
    """The handlers of runs that succeeded, of any application."""
    names = select(_RUNS.c.handler).where(_RUNS.c.status == RunStatus.SUCCEEDED.value).distinct()
    return (await session.scalars(names.order_by(_RUNS.c.handler))).all()


async def noted_between(
    session: AsyncSession, application: str, handlers: Collection[str]
) -> tuple[datetime, datetime] | None:
    """From when until when it is known what these handlers changed; None when of no change. In a database that was
    filled without its trail that is since it is worked on, and not since its oldest run."""
    names = sorted({name[:ACTOR_CHARS] for name in handlers})
    mine = (_AUDIT.c.application == application, _AUDIT.c.reason.is_not(None), _AUDIT.c.actor.in_(names))
    wanted = select(func.min(_AUDIT.c.at).label("first"), func.max(_AUDIT.c.at).label("last")).where(*mine)
    found = (await session.execute(wanted)).one()
    return None if found.first is None else (found.first, found.last)


async def spoken(
    session: AsyncSession, application: str, words: Collection[tuple[str, str]], *, subject: str | None = None
) -> AsyncIterator[Note]:
    """The changes that are one of these words (action, actor), of all subjects or of one, in their order. A stream."""
    columns = (_AUDIT.c.id, _AUDIT.c.at, _AUDIT.c.actor, _AUDIT.c.action, _AUDIT.c.reason, _AUDIT.c.after)
    said = or_(false(), *(and_(_AUDIT.c.action == action, _AUDIT.c.actor == actor) for action, actor in words))
    mine = [_AUDIT.c.application == application, *([] if subject is None else [_AUDIT.c.subject == subject])]
    wanted = select(*columns).where(*mine, said).order_by(_AUDIT.c.id)
    async for row in await session.stream(wanted, execution_options=_STREAMED):
        yield Note(*row)


async def handled(
    session: AsyncSession, application: str, handlers: Sequence[str], *, noted: bool
) -> AsyncIterator[Handled]:
    """The runs of these handlers that succeeded, with what they emitted. A stream: those that noted a change, by its
    number, or those that noted none, by the time they were done; then by arrival, and in the handlers' order."""
    first = _first_notes(application)
    # Kept apart: of the table SQLite takes an index that finds all of an application's, or a handler's, once a run.
    columns = (_OUTBOX.c.cause, _OUTBOX.c.handler, _OUTBOX.c.seq, _OUTBOX.c.event_id, _OUTBOX.c.type, _OUTBOX.c.key)
    mine = select(*columns).where(unindexed(_OUTBOX.c.application) == application)
    emitted_by = mine.cte("emitted").prefix_with("MATERIALIZED")
    caused = and_(emitted_by.c.cause == _RUNS.c.event_id, emitted_by.c.handler == _RUNS.c.handler)
    order = case({name: number for number, name in enumerate(handlers)}, value=_RUNS.c.handler)
    wanted = (
        select(_RUNS.c.event_id, _RUNS.c.seq, _RUNS.c.key, _RUNS.c.handler, _RUNS.c.plan, _RUNS.c.updated_at,
               first.c.place, emitted_by.c.event_id.label("id"), emitted_by.c.type, emitted_by.c.key)
        .outerjoin(first, _of_run(first))
        .outerjoin(emitted_by, caused)
        .where(*_succeeded(application, handlers), first.c.place.is_not(None) if noted else first.c.place.is_(None))
        .order_by(first.c.place if noted else _RUNS.c.updated_at, _RUNS.c.seq, order, emitted_by.c.seq)
    )  # fmt: skip
    one: Handled | None = None
    emitted: list[Emission] = []
    async for row in await session.stream(wanted, execution_options=_STREAMED):
        if one is None or (one.event_id, one.handler) != (row.event_id, row.handler):
            if one is not None:
                yield one
            emitted = []
            one = Handled(row.event_id, row.seq, row.key, row.handler, row.plan, row.updated_at, row.place, emitted)
        if row.id is not None:
            emitted.append(Emission(id=row.id, type=row.type, key=row.key, data={}))
    if one is not None:
        yield one


def _succeeded(application: str, handlers: Collection[str]) -> tuple[ColumnElement[bool], ...]:
    done = _RUNS.c.status == RunStatus.SUCCEEDED.value
    return _RUNS.c.application == application, done, _RUNS.c.handler.in_(sorted(handlers))


def _first_notes(application: str) -> Subquery:
    """The number of the first change that a run noted."""
    mine = (_AUDIT.c.application == application, _AUDIT.c.reason.is_not(None))
    wanted = select(_AUDIT.c.reason, _AUDIT.c.actor, func.min(_AUDIT.c.id).label("place")).where(*mine)
    return wanted.group_by(_AUDIT.c.reason, _AUDIT.c.actor).subquery()


def _of_run(first: Subquery) -> ColumnElement[bool]:
    return and_(first.c.reason == _RUNS.c.event_id, first.c.actor == func.substr(_RUNS.c.handler, 1, ACTOR_CHARS))


async def clear(session: AsyncSession, table: Table, application: str) -> None:
    """Delete an application's rows of a plugin's table."""
    await session.execute(delete(table).where(table.c.application == application))


async def contents(session: AsyncSession, table: Table, application: str) -> Contents:
    """What an application has in a table. Read as a stream."""
    wanted = select(table).where(table.c.application == application).order_by(*table.primary_key.columns)
    count, seen = 0, [hashlib.sha256() for _ in table.columns]
    async for row in await session.stream(wanted):
        count += 1
        for column, value in zip(seen, row, strict=True):
            column.update(repr(value).encode() + b"\0")
    names = [column.name for column in table.columns]
    return Contents(count, {name: column.hexdigest() for name, column in zip(names, seen, strict=True)})
