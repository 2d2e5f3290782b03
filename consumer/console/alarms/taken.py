"""Taken: up to where every request to fulfil was taken by a handler that fulfils. What nobody took stays in sight by
it, however many newer ones there are: who looks begins right before the oldest of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, Final

from sqlalchemy import ColumnElement, FromClause, Table, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.handling.handlers import bystanders
from consumer.ledger.reading import key_values
from consumer.ledger.tables import EventRow, OutboxRow, RunRow
from consumer.wire import SEED
from handlers.fulfilment.store import REQUESTED

EVENTS: Table = EventRow.__table__
RUNS: Table = RunRow.__table__
OUTBOX: Table = OutboxRow.__table__
NAME: Final = "fulfilment/taken"
PAGE: Final = 1_000
SETTLED_AFTER: Final = timedelta(minutes=5)
"""Of two transactions the later may number its events lower; none lasts as long as this."""


async def until(session: AsyncSession) -> int:
    """The `seq` up to which nothing is left; 0 before anybody looked."""
    return int(await key_values.load(session, NAME) or 0)


def taker(event: FromClause) -> ColumnElement[Any]:
    """A run of this event by a handler that fulfils; or that a seed asked for it, so that nobody is to. Null where
    neither is. One probe an event: EXISTS may be turned into a join with everything that was ever run."""
    run = select(RUNS.c.event_id).where(
        RUNS.c.application == event.c.application,
        RUNS.c.event_id == event.c.id,
        RUNS.c.handler.not_in(bystanders()),
    )
    # In words that no index of plans is for.
    seeded = select(OUTBOX.c.event_id).where(
        OUTBOX.c.application == event.c.application,
        OUTBOX.c.event_id == event.c.id,
        func.coalesce(OUTBOX.c.plan, "") == SEED,
    )
    return func.coalesce(run.limit(1).scalar_subquery(), seeded.limit(1).scalar_subquery())


async def further(session: AsyncSession, now: datetime) -> tuple[int | None, bool]:
    """Up to where it may move on by one page, None where it may not, and whether there may be more. It stops at the
    first that nobody took, and at the first that is not settled. `now`: the database's."""
    page = (
        select(EVENTS.c.seq, EVENTS.c.application, EVENTS.c.id, EVENTS.c.recorded_at)
        .where(EVENTS.c.type == REQUESTED, EVENTS.c.seq > await until(session))
        .order_by(EVENTS.c.seq)
        .limit(PAGE)
        .subquery()
    )
    judged = select(page.c.seq, page.c.recorded_at, taker(page).is_not(None)).order_by(page.c.seq)
    rows = (await session.execute(judged)).all()
    done = list(takewhile(lambda row: row[2] and row[1] <= now - SETTLED_AFTER, rows))
    return (done[-1][0] if done else None), len(done) == PAGE


async def keep(session: AsyncSession, seq: int) -> None:
    """Remember it. Of several workers any may come last: who is behind only looks again."""
    await key_values.keep(session, NAME, str(seq))
