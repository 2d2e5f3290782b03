"""The reads that handlers asked for, and the versions of reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    ColumnElement,
    Executable,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import SET_BACK
from consumer.columns import Given, among, insert_into, unindexed
from consumer.ledger.engine.chunks import matching
from consumer.ledger.engine.counting import changed, up_to
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.tables import UNREADABLE, ReadRow, SequenceRow

if TYPE_CHECKING:
    from consumer.plugin import ReadRequest

_READS: Table = ReadRow.__table__
_SEQUENCES: Table = SequenceRow.__table__
READ_VERSION = "read_version"
FIRST_TOLD: Final = 5
SOON_TRIES: Final = 5
SOON, LONGEST = timedelta(minutes=10), timedelta(hours=8)
"""No read is put off for so long: the first SOON_TRIES times, and ever."""
_ASKED = Given(
    _READS,
    ("application", "kind", "object_id", "asked", "due_at", "again_at", "attempts", "created_at", "traceparent"),
)
_NEWEST_VERSION = func.coalesce(
    select(_SEQUENCES.c.value).where(_SEQUENCES.c.name == READ_VERSION).scalar_subquery(), 0
)


async def ask(session: AsyncSession, application: str, requests: Sequence[ReadRequest], now: datetime) -> None:
    """Store read requests. One for the same object coalesces: the earlier time wins, the count goes up, so that a
    read under way does not swallow a request that came after it began. What the failures of earlier requests left
    (their waits, and that one was told so) does not count for it: it is answered anew."""
    # One row per object and statement (ON CONFLICT DO UPDATE must not touch a row twice), in key order (no deadlock).
    wanted: dict[tuple[str, str], tuple[datetime, str | None]] = {}
    for request in requests:
        at = request.not_before or now
        key = (request.kind, request.object_id)
        if key not in wanted or at < wanted[key][0]:
            wanted[key] = (at, request.traceparent)
    if not wanted:
        return
    rows = [
        {
            "application": application,
            "kind": kind,
            "object_id": object_id,
            "asked": 1,
            "due_at": at,
            "again_at": at,
            "attempts": 0,
            "created_at": now,
            "traceparent": traceparent,
        }
        for (kind, object_id), (at, traceparent) in sorted(wanted.items(), key=lambda one: one[0])
    ]
    dialect = session.get_bind().dialect.name
    await session.execute(_asking(dialect), _ASKED.rows(dialect, rows))


@cache
def _asking(dialect: str) -> Executable:  # asked for each order that nobody registered: built once
    insert = _ASKED.insert(dialect, lambda _: {"asked_after": _NEWEST_VERSION})
    asked_for, newest = insert.excluded.due_at, insert.excluded.asked_after
    return insert.on_conflict_do_update(
        index_elements=["application", "kind", "object_id"],
        set_={
            "asked": _READS.c.asked + 1,
            "asked_after": case((newest > _READS.c.asked_after, newest), else_=_READS.c.asked_after),
            "due_at": _earlier(asked_for, _READS.c.due_at),
            "traceparent": case((asked_for < _READS.c.due_at, insert.excluded.traceparent), else_=_READS.c.traceparent),
            "again_at": _earlier(asked_for, func.coalesce(_READS.c.again_at, asked_for)),
            "attempts": 0,
            "code": None,
        },
    )


def _earlier(one: ColumnElement[datetime], other: ColumnElement[datetime]) -> ColumnElement[datetime]:
    return case((one < other, one), else_=other)


async def due(
    session: AsyncSession,
    now: datetime,
    limit: int,
    application: str | None = None,
    *kinds: str,
) -> Sequence[ReadRow]:
    """The reads to do now, oldest first: of these kinds, or of any."""
    statement = _due(application is not None, kinds)
    found: Sequence[ReadRow] = (await session.scalars(statement, {"now": now, "of": application, "most": limit})).all()
    return found


@cache
def _due(is_of_one: bool, kinds: tuple[str, ...]) -> Select[Any]:  # asked every second: built once
    statement = select(ReadRow).where(_READS.c.due_at <= bindparam("now")).order_by(_READS.c.due_at)
    if is_of_one:
        statement = statement.where(unindexed(_READS.c.application) == bindparam("of"))
    if kinds:
        statement = statement.where(_READS.c.kind.in_(kinds))
    return statement.limit(bindparam("most"))


async def count_due(session: AsyncSession, now: datetime, application: str, kind: str) -> int:
    """How many reads of this kind are to be done now, at most COUNT_MAX."""
    mine = (unindexed(_READS.c.application) == application) & (_READS.c.kind == kind) & (_READS.c.due_at <= now)
    return await up_to(session, select(_READS.c.due_at).where(mine).order_by(_READS.c.due_at))


async def oldest_due(session: AsyncSession, now: datetime, application: str) -> datetime | None:
    """Since when the read that waits for longest is due; None where none is."""
    mine = (unindexed(_READS.c.application) == application) & (_READS.c.due_at <= now)
    found: datetime | None = await session.scalar(
        select(_READS.c.due_at).where(mine).order_by(_READS.c.due_at).limit(1)
    )
    return found


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """An object that a read is asked for, and that cannot be read; `code`: how the last one failed."""

    application: str
    kind: str
    object_id: str
    code: str


async def unreadable(session: AsyncSession, applications: Sequence[str]) -> tuple[int, tuple[Unreadable, ...]]:
    """How many reads of these applications fail again and again, and nobody was told; and the first of those that were
    asked for. Each is put off after every failure, so none of them ever looks late."""
    # Literal for the index of those. That index alone is in the order in which they were asked for.
    mine = unindexed(_READS.c.application).in_(applications)
    columns = (_READS.c.application, _READS.c.kind, _READS.c.object_id, _READS.c.code)
    in_order = select(*columns).where(text(UNREADABLE), mine).order_by(_READS.c.created_at)
    first = (await session.execute(in_order.limit(FIRST_TOLD))).all()
    count = await up_to(session, in_order) if len(first) == FIRST_TOLD else len(first)
    return count, tuple(Unreadable(**row._mapping) for row in first)


async def due_of(
    session: AsyncSession,
    application: str,
    kind: str,
    object_ids: Sequence[str],
    now: datetime,
    *,
    version: int | None = None,
) -> Sequence[ReadRow]:
    """The reads of these objects that are to be done now; with a version, those that were asked for before the read of
    that version began, which may answer them. At most a few hundred ids at once."""
    if not object_ids:
        return []
    one = (_READS.c.application == application) & (_READS.c.kind == kind) & (_READS.c.due_at <= now)
    if version is not None:
        one &= _READS.c.asked_after < version
    return (await session.execute(select(ReadRow).where(one, among(_READS.c.object_id, object_ids)))).scalars().all()


async def begin(session: AsyncSession, reads: Sequence[ReadRow]) -> None:
    """These are about to be answered: from here on `again_at` tells what is asked for beyond the answer. At most a few
    hundred at once."""
    for these in _as_asked(reads):
        await session.execute(update(_READS).where(these).values(again_at=None))


async def done(session: AsyncSession, reads: Sequence[ReadRow], version: int, now: datetime) -> None:
    """These were answered by the read of this version, as they were asked for. One that was asked for again since it
    began stays, due when that was asked for: a read "in a day" is no read now. At most a few hundred at once."""
    for these in _as_asked(reads):
        await session.execute(delete(_READS).where(these, _READS.c.asked_after < version))
    due_at = case((_READS.c.again_at > now, _READS.c.again_at), else_=now)
    for still in _objects(reads):
        await session.execute(update(_READS).where(still).values(due_at=due_at, attempts=0, code=None))


def _objects(reads: Iterable[ReadRow]) -> Iterator[ColumnElement[bool]]:
    ids = ((read.object_id, read.application, read.kind) for read in reads)
    return matching(_READS.c.object_id, (_READS.c.application, _READS.c.kind), ids)


def _as_asked(reads: Iterable[ReadRow]) -> Iterator[ColumnElement[bool]]:
    """Those that nobody has asked for again: most were asked for equally often."""
    by_count: dict[int, list[ReadRow]] = {}
    for read in reads:
        by_count.setdefault(read.asked, []).append(read)
    for asked, alike in sorted(by_count.items()):
        for these in _objects(alike):
            yield and_(these, _READS.c.asked == asked)


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
            _READS.c.asked_after == read.asked_after,
        )
        .values(due_at=due_at, attempts=_READS.c.attempts + 1, code=code)
    )


async def after_set_back(session: AsyncSession, now: datetime) -> int:
    """Where the clock was ahead, and was set back, what was asked for meanwhile to be read at once is due now, and so
    is what was tried in vain and waits for longer than such a try puts it off. Returns how many that are."""
    too_far = case((_READS.c.attempts <= SOON_TRIES, now + SOON), else_=now + LONGEST)
    put_off = or_(_READS.c.due_at <= _READS.c.created_at, and_(_READS.c.attempts > 0, _READS.c.due_at > too_far))
    return await changed(session, update(_READS).where(_READS.c.due_at > now + SET_BACK, put_off).values(due_at=now))


async def next_version(session: AsyncSession, count: int = 1) -> int:
    """The first of `count` new read versions. Take it before the request is sent, and commit (case A40).

    They count up, and never stand below the database's time in microseconds: a ledger restored from a backup gives no
    version a second time, so what it reads now is newer than anything that lies in the log.
    """
    floor = int((await shared_time(session)).timestamp() * 1_000_000) + count - 1
    return await _count(session, count, floor) - count + 1


async def count_from(session: AsyncSession, version: int) -> None:
    """The next read versions are above this one, which came from another ledger: its clock may have been ahead."""
    await _count(session, 0, version)


async def _count(session: AsyncSession, count: int, floor: int) -> int:
    dialect = session.get_bind().dialect.name
    higher = func.greatest if dialect == "postgresql" else func.max
    insert = insert_into(_SEQUENCES, dialect)
    statement = insert.values(name=READ_VERSION, value=floor).on_conflict_do_update(
        index_elements=["name"], set_={"value": higher(_SEQUENCES.c.value + count, insert.excluded.value)}
    )
    return int((await session.execute(statement.returning(_SEQUENCES.c.value))).scalar_one())
