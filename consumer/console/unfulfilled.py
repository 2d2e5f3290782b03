"""Paid but not fulfilled: how many orders, since when, and why (case O5). The business's own alarm.

An order counts while it is held, while its `fulfilment.requested` waits to be sent, while a run on that is not done,
and when no handler that fulfils took it: statistics and the like (`fulfils=False`, projections) deliver nothing, and
their troubles are not the customer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, Table, and_, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.handling.handlers import bystanders
from consumer.ledger.tables import EventRow, OutboxRow, RunRow
from handlers.fulfilment.store import REQUESTED
from handlers.fulfilment.tables import ORDERS

EVENTS: Table = EventRow.__table__
OUTBOX: Table = OutboxRow.__table__
RUNS: Table = RunRow.__table__
NEWEST = 10_000
HELD_SHOWN = 5
PROVES = "fulfilment:order_paid"


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """So many orders of one application wait for one reason, the oldest of them since `oldest_at`."""

    application: str
    reason: str
    count: int
    oldest_at: datetime


@dataclass(frozen=True, kw_only=True)
class HeldOrder:
    """A paid order that is not handed to fulfilment, and why (`hold`, see the plugin's README)."""

    application: str
    order_id: str
    hold: str
    paid_at: datetime


async def longest_held(session: AsyncSession, limit: int = HELD_SHOWN) -> list[HeldOrder]:
    """The orders held for longest: those being asked for have no finding by which they could be found."""
    columns = (ORDERS.c.application, ORDERS.c.order_id, ORDERS.c.hold, ORDERS.c.paid_at)
    held = select(*columns).where(text("hold IS NOT NULL")).order_by(ORDERS.c.paid_at, ORDERS.c.order_id).limit(limit)
    return [HeldOrder(**row) for row in (await session.execute(held)).mappings()]


async def unfulfilled(session: AsyncSession) -> list[Waiting]:
    """Per application and reason: held, unsent, retrying, parked, dead, no_handler. Empty when all is well."""
    found: list[Waiting] = []
    for reason, statement in (("held", _held()), ("unsent", _unsent()), ("no_handler", _unhandled())):
        for application, count, oldest_at in await session.execute(statement):
            found.append(Waiting(application=application, reason=reason, count=count, oldest_at=oldest_at))
    for application, status, count, oldest_at in await session.execute(_unfinished()):
        found.append(Waiting(application=application, reason=status, count=count, oldest_at=oldest_at))
    return sorted(found, key=lambda one: (one.application, one.reason))


def _held() -> Select[Any]:
    columns = (ORDERS.c.application, func.count(), func.min(ORDERS.c.paid_at))
    return select(*columns).where(text("hold IS NOT NULL")).group_by(ORDERS.c.application)


def _unsent() -> Select[Any]:
    columns = (OUTBOX.c.application, func.count(), func.min(OUTBOX.c.created_at))
    waiting = and_(text("published_at IS NULL"), OUTBOX.c.type == REQUESTED)
    return select(*columns).where(waiting).group_by(OUTBOX.c.application)


def _unfinished() -> Select[Any]:
    """Runs that are not done; the words are literal so that the partial index of open runs serves."""
    event = and_(EVENTS.c.application == RUNS.c.application, EVENTS.c.id == RUNS.c.event_id)
    asked = and_(EVENTS.c.type == REQUESTED, RUNS.c.handler.not_in(bystanders()))
    proof = RUNS.c.handler == PROVES  # the order is paid, and not even known to be so yet
    columns = (
        RUNS.c.application,
        RUNS.c.status,
        func.count(RUNS.c.event_id.distinct()),
        func.min(EVENTS.c.received_at),
    )
    return (
        select(*columns)
        .join(EVENTS, event)
        .where(text("runs.status <> 'succeeded'"), text("runs.status <> 'skipped'"), or_(asked, proof))
        .group_by(RUNS.c.application, RUNS.c.status)
    )


def _unhandled() -> Select[Any]:
    """Requests that no handler which fulfils took, among the newest; when that happens it happens to all of them."""
    newest = (
        select(EVENTS.c.application, EVENTS.c.id, EVENTS.c.received_at)
        .where(EVENTS.c.type == REQUESTED)
        .order_by(EVENTS.c.seq.desc())
        .limit(NEWEST)
        .subquery()
    )
    run = select(RUNS.c.event_id).where(
        RUNS.c.application == newest.c.application,
        RUNS.c.event_id == newest.c.id,
        RUNS.c.handler.not_in(bystanders()),
    )
    columns = (newest.c.application, func.count(), func.min(newest.c.received_at))
    return select(*columns).where(~run.exists()).group_by(newest.c.application)
