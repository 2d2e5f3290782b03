"""Trial: a transaction that is always rolled back, for finding out what would happen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from sqlalchemy import Table, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger import Database
from consumer.ledger.engine.chunks import matching
from consumer.ledger.tables import EventRow, OutboxRow, RunRow

_EVENTS: Table = EventRow.__table__
_OUTBOX: Table = OutboxRow.__table__
_RUNS: Table = RunRow.__table__


class _Undo(Exception):
    """The end of every trial."""


@asynccontextmanager
async def trial(database: Database, *, writes: bool) -> AsyncIterator[AsyncSession]:
    """Whatever is written in it is undone. On PostgreSQL it waits for nobody's lock longer than a second, so that it
    never stands between live work for long: raises LedgerUnavailable then. Not `writes`: nothing will be written, and
    nobody on SQLite has to wait for it."""
    if not writes:
        async with database.reading() as session:
            yield session
        return
    try:
        async with database.transaction() as session:
            if session.get_bind().dialect.name == "postgresql":
                await session.execute(text("SET LOCAL lock_timeout = '1s'"))  # raw: a setting of this transaction only
            yield session
            session.expunge_all()  # what was added and not flushed must not be written on the way out
            raise _Undo
    except _Undo:
        return


async def look(session: AsyncSession) -> None:
    """Write what was added, and look whether the transaction still takes statements: on PostgreSQL it does not after a
    failed one, and a handler may have caught that error. Raises SQLAlchemy's."""
    await session.flush()
    await session.execute(text("SELECT 1"))


async def derived_before(session: AsyncSession, ids: Collection[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Which of these derived events (application, event id) were emitted already, or have arrived."""
    found: set[tuple[str, str]] = set()
    for application, event_id in ((_OUTBOX.c.application, _OUTBOX.c.event_id), (_EVENTS.c.application, _EVENTS.c.id)):
        for some in matching(event_id, (application,), ((one, name) for name, one in ids)):
            rows = await session.execute(select(application, event_id).where(some))
            found |= {(name, one) for name, one in rows}
    return frozenset(found)


async def blocking(
    session: AsyncSession, lanes: Collection[tuple[str, str, str]]
) -> dict[tuple[str, str, str], dict[int, str]]:
    """Lane (application, handler, key) to the runs that later ones wait for, in order: their places and events."""
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    columns = (_RUNS.c.application, _RUNS.c.handler, _RUNS.c.key, _RUNS.c.seq, _RUNS.c.event_id)
    statement = select(*columns).where(_RUNS.c.blocking)
    named = ((key, application, handler) for application, handler, key in lanes)
    for some in matching(_RUNS.c.key, (_RUNS.c.application, _RUNS.c.handler), named):
        rows = await session.execute(statement.where(some).order_by(_RUNS.c.seq))
        for application, handler, key, seq, event_id in rows:
            found.setdefault((application, handler, key), {})[seq] = event_id
    return found
