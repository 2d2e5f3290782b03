"""Requests: what became of derived events that ask merchants' handlers for something, many at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, unindexed
from consumer.ledger.handling.handlers import bystanders
from consumer.ledger.tables import EventRow, OutboxRow, RunRow

_EVENTS: Table = EventRow.__table__
_OUTBOX: Table = OutboxRow.__table__
_RUNS: Table = RunRow.__table__


@dataclass(kw_only=True)
class Request:
    """One derived event: when it was emitted and when it arrived (None: never), whether it was sent, and the state of
    each handler that fulfils."""

    emitted_at: datetime | None = None
    arrived_at: datetime | None = None
    is_sent: bool = False
    runs: dict[str, str] = field(default_factory=dict)


async def requests(session: AsyncSession, application: str, event_ids: Collection[str]) -> Mapping[str, Request]:
    """Event id to what became of it; one that was never heard of is not in it."""
    found: dict[str, Request] = {}
    sent = select(_OUTBOX.c.event_id, _OUTBOX.c.created_at, _OUTBOX.c.published_at)
    mine = (_OUTBOX.c.application == application, among(_OUTBOX.c.event_id, event_ids))
    for event_id, created_at, published_at in await session.execute(sent.where(*mine)):
        found[event_id] = Request(emitted_at=created_at, is_sent=published_at is not None)
    arrived = select(_EVENTS.c.id, _EVENTS.c.received_at)
    for event_id, at in await session.execute(
        arrived.where(_EVENTS.c.application == application, among(_EVENTS.c.id, event_ids))
    ):
        found.setdefault(event_id, Request(is_sent=True)).arrived_at = at
    beside = frozenset(await session.scalars(bystanders()))
    runs = select(_RUNS.c.event_id, _RUNS.c.handler, _RUNS.c.status)
    for event_id, handler, status in await session.execute(
        runs.where(_RUNS.c.application == application, among(_RUNS.c.event_id, event_ids))
    ):
        if handler not in beside:
            found.setdefault(event_id, Request(is_sent=True)).runs[handler] = status
    return found


async def others(
    session: AsyncSession, application: str, event_type: str, keys: Collection[str], known: Collection[str]
) -> Mapping[str, list[str]]:
    """Key to further events of this type about it, beside the known ones: by rights there are none."""
    found: dict[str, list[str]] = {}
    of_keys = select(_EVENTS.c.key, _EVENTS.c.id).where(
        unindexed(_EVENTS.c.application) == application,
        among(_EVENTS.c.key, keys),
        unindexed(_EVENTS.c.type) == event_type,
    )
    for key, event_id in await session.execute(of_keys):
        if event_id not in known:
            found.setdefault(key, []).append(event_id)
    return found
