"""The reads that handlers asked for, and the versions of reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Table, case, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import insert_into
from consumer.ledger.tables import ReadRow, SequenceRow
from consumer.plugin import ReadRequest

_READS: Table = ReadRow.__table__
_SEQUENCES: Table = SequenceRow.__table__
READ_VERSION = "read_version"


async def ask(session: AsyncSession, application: str, requests: Sequence[ReadRequest], now: datetime) -> None:
    """Store read requests. One for the same object coalesces: the earlier time wins, the count goes up, so that a
    read under way does not swallow a request that came after it began. What the failures of earlier requests left
    (their waits, and that one was told so) does not count for it: it is answered anew."""
    # One row per object and statement (ON CONFLICT DO UPDATE must not touch a row twice), in key order (no deadlock).
    wanted: dict[tuple[str, str], datetime] = {}
    for request in requests:
        at = request.not_before or now
        key = (request.kind, request.object_id)
        wanted[key] = min(at, wanted.get(key, at))
    if not wanted:
        return
    insert = insert_into(_READS, session.get_bind().dialect.name)
    asked_for = insert.excluded.due_at
    statement = insert.on_conflict_do_update(
        index_elements=["application", "kind", "object_id"],
        set_={
            "asked": _READS.c.asked + 1,
            "due_at": case((asked_for < _READS.c.due_at, asked_for), else_=_READS.c.due_at),
            "attempts": 0,
            "code": None,
        },
    )
    rows = [
        {
            "application": application,
            "kind": kind,
            "object_id": object_id,
            "asked": 1,
            "due_at": at,
            "attempts": 0,
            "created_at": now,
        }
        for (kind, object_id), at in sorted(wanted.items())
    ]
    await session.execute(statement, rows)


async def due(
    session: AsyncSession,
    now: datetime,
    limit: int,
    application: str | None = None,
    *kinds: str,
) -> Sequence[ReadRow]:
    """The reads to do now, oldest first: of these kinds, or of any."""
    statement = select(ReadRow).where(_READS.c.due_at <= now).order_by(_READS.c.due_at).limit(limit)
    if application is not None:
        statement = statement.where(_READS.c.application == application)
    if kinds:
        statement = statement.where(_READS.c.kind.in_(kinds))
    return (await session.execute(statement)).scalars().all()


async def count_due(session: AsyncSession, now: datetime, application: str, kind: str) -> int:
    """How many reads of this kind are to be done now."""
    mine = (_READS.c.application == application) & (_READS.c.kind == kind) & (_READS.c.due_at <= now)
    return (await session.execute(select(func.count()).select_from(_READS).where(mine))).scalar_one()


async def due_of(
    session: AsyncSession, application: str, kind: str, object_ids: Sequence[str], now: datetime
) -> Sequence[ReadRow]:
    """The reads of these objects that are to be done now. At most a few hundred ids at once."""
    if not object_ids:
        return []
    one = (_READS.c.application == application) & (_READS.c.kind == kind) & (_READS.c.due_at <= now)
    return (await session.execute(select(ReadRow).where(one, _READS.c.object_id.in_(list(object_ids))))).scalars().all()


async def done(session: AsyncSession, reads: Sequence[ReadRow], now: datetime) -> None:
    """These were read. One that was asked for again meanwhile stays, due at once."""
    for read in sorted(reads, key=lambda row: (row.application, row.kind, row.object_id)):
        same = (
            (_READS.c.application == read.application)
            & (_READS.c.kind == read.kind)
            & (_READS.c.object_id == read.object_id)
        )
        gone = await session.execute(delete(_READS).where(same, _READS.c.asked == read.asked).returning(_READS.c.kind))
        if gone.first() is None:
            await session.execute(update(_READS).where(same).values(due_at=now, attempts=0))


async def put_off(session: AsyncSession, read: ReadRow, *, due_at: datetime, code: str) -> None:
    """The read failed; it is due again later (absence proves nothing, case G7). One that was asked for again meanwhile
    stays due as it is: its answer is another one."""
    await session.execute(
        update(_READS)
        .where(
            _READS.c.application == read.application,
            _READS.c.kind == read.kind,
            _READS.c.object_id == read.object_id,
            _READS.c.asked == read.asked,
        )
        .values(due_at=due_at, attempts=_READS.c.attempts + 1, code=code)
    )


async def next_version(session: AsyncSession, count: int = 1) -> int:
    """The first of `count` new read versions. Take it before the request is sent, and commit (case A40)."""
    insert = insert_into(_SEQUENCES, session.get_bind().dialect.name)
    statement = insert.values(name=READ_VERSION, value=count).on_conflict_do_update(
        index_elements=["name"], set_={"value": _SEQUENCES.c.value + count}
    )
    last = (await session.execute(statement.returning(_SEQUENCES.c.value))).scalar_one()
    return int(last) - count + 1
