"""The recorded events: a duplicate is decided by the unique key (application, id), never by looking first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Table, exists, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, insert_into, unindexed
from consumer.events import Event, Source, Trust
from consumer.ledger.engine.chunks import matching
from consumer.ledger.engine.counting import COUNT_MAX, count_between, each_of, numbered
from consumer.ledger.tables import EventRow, RunRow

EventKey = tuple[str, str]
"""(application, event id)."""

_EVENTS: Table = EventRow.__table__
_RUNS: Table = RunRow.__table__


async def record(session: AsyncSession, events: Sequence[Event], now: datetime) -> Mapping[EventKey, int]:
    """Insert what is not there yet; returns the `seq` of each event that is new, in this transaction."""
    if not events:
        return {}
    insert = insert_into(_EVENTS, session.get_bind().dialect.name)
    statement = insert.on_conflict_do_nothing(index_elements=["application", "id"]).returning(
        _EVENTS.c.application, _EVENTS.c.id, _EVENTS.c.seq
    )
    done = await session.execute(statement, [_values(event, now) for event in events])
    return {(application, event_id): seq for application, event_id, seq in done}


def _values(event: Event, now: datetime) -> dict[str, object]:
    return {
        "application": event.application,
        "id": event.id,
        "type": event.type,
        "key": event.key,
        "trust": event.trust.value,
        "source": event.source.value,
        "raw": event.raw,
        "received_at": event.received_at,
        "recorded_at": now,
        "occurred_at": event.occurred_at,
        "delivery_id": event.delivery_id,
        "object_id": event.object_id,
        "order_id": event.order_id,
        "subscription_id": event.subscription_id,
        "customer": event.customer,
        "traceparent": event.traceparent,
    }


async def known(session: AsyncSession, keys: Iterable[EventKey]) -> frozenset[EventKey]:
    """Which of these events the ledger has."""
    found: set[EventKey] = set()
    for these in _these(keys):
        rows = await session.execute(select(_EVENTS.c.application, _EVENTS.c.id).where(these))
        found |= {(application, event_id) for application, event_id in rows}
    return frozenset(found)


async def load(session: AsyncSession, keys: Iterable[EventKey]) -> Mapping[EventKey, Event]:
    """The events, whole."""
    found: dict[EventKey, Event] = {}
    for these in _these(keys):
        rows = (await session.execute(select(EventRow).where(these))).scalars()
        found |= {(row.application, row.id): to_event(row) for row in rows}
    return found


def _these(keys: Iterable[EventKey]) -> Iterator[ColumnElement[bool]]:
    return matching(_EVENTS.c.id, (_EVENTS.c.application,), ((event_id, name) for name, event_id in keys))


def to_event(row: EventRow) -> Event:
    """The event in a row, as the handlers see it."""
    return Event(
        application=row.application,
        id=row.id,
        type=row.type,
        key=row.key,
        trust=Trust(row.trust),
        source=Source(row.source),
        raw=row.raw,
        received_at=row.received_at,
        delivery_id=row.delivery_id,
        object_id=row.object_id,
        order_id=row.order_id,
        subscription_id=row.subscription_id,
        customer=row.customer,
        occurred_at=row.occurred_at,
        traceparent=row.traceparent,
    )


async def told(session: AsyncSession, application: str, keys: Sequence[str]) -> Mapping[str, Mapping[str, datetime]]:
    """Aggregate to the types of its events, each with when the newest was received. At most a few hundred keys at
    once; one without any event is not in it."""
    if not keys:
        return {}
    statement = (
        select(_EVENTS.c.key, _EVENTS.c.type, func.max(_EVENTS.c.received_at))
        .where(_EVENTS.c.application == application, among(_EVENTS.c.key, keys))
        .group_by(_EVENTS.c.key, _EVENTS.c.type)
    )
    found: dict[str, dict[str, datetime]] = {}
    for key, event_type, received_at in await session.execute(statement):
        found.setdefault(key, {})[event_type] = received_at
    return found


async def about_how_many(session: AsyncSession) -> int:
    """How many events there are; beyond COUNT_MAX what the database reckons, without looking."""
    span = await numbered(session, _EVENTS.c.seq)
    if span is None or span.count < COUNT_MAX:
        return 0 if span is None else await count_between(session, span)
    if session.get_bind().dialect.name != "postgresql":
        return span.count  # numbered one after the other
    reckoned = await session.scalar(text("SELECT reltuples FROM pg_class WHERE oid = 'events'::regclass"))
    return max(COUNT_MAX, int(reckoned or 0))


async def last_recorded_at(session: AsyncSession) -> datetime | None:
    """When the newest event was recorded."""
    found: datetime | None = await session.scalar(select(_EVENTS.c.recorded_at).order_by(_EVENTS.c.seq.desc()).limit(1))
    return found


async def last_received(session: AsyncSession, application: str, source: Source, since: datetime) -> datetime | None:
    """When the newest event from this source was received, if after `since`."""
    found: datetime | None = await session.scalar(
        select(_EVENTS.c.received_at)
        .where(
            _EVENTS.c.received_at > since,
            unindexed(_EVENTS.c.application) == application,
            _EVENTS.c.source == source.value,
        )
        .order_by(_EVENTS.c.received_at.desc())
        .limit(1)
    )
    return found


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    """Which events a listing shows; None means any."""

    application: str | None = None
    type: str | None = None
    event_id: str | None = None
    order_id: str | None = None
    subscription_id: str | None = None
    handler: str | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 100


def _has_run(handler: str | None, status: str | None) -> Any:
    of_event = exists().where(_RUNS.c.application == _EVENTS.c.application, _RUNS.c.event_id == _EVENTS.c.id)
    if handler is not None:
        of_event = of_event.where(_RUNS.c.handler == handler)
    return of_event.where(_RUNS.c.status == status) if status is not None else of_event


async def search(session: AsyncSession, wanted: EventFilter) -> Sequence[EventRow]:
    """The newest events that fit, newest first, without their raw bytes being needed."""
    statement = select(EventRow).order_by(_EVENTS.c.seq.desc()).limit(wanted.limit)
    # An index of its own serves each of these but the application, which leads others and fits nearly everything.
    exact = {
        unindexed(_EVENTS.c.application): wanted.application,
        _EVENTS.c.order_id: wanted.order_id,
        _EVENTS.c.subscription_id: wanted.subscription_id,
    }
    for column, value in exact.items():
        if value is not None:
            statement = statement.where(column == value)
    if wanted.event_id is not None:
        applications = [wanted.application] if wanted.application else await each_of(session, _EVENTS.c.application)
        statement = statement.where(among(_EVENTS.c.application, applications), _EVENTS.c.id == wanted.event_id)
    if wanted.type is not None:
        pattern = wanted.type
        is_wildcard = pattern.endswith(".*")
        fits = _EVENTS.c.type.startswith(pattern[:-1], autoescape=True) if is_wildcard else _EVENTS.c.type == pattern
        statement = statement.where(fits)
    if wanted.handler is not None or wanted.status is not None:
        statement = statement.where(_has_run(wanted.handler, wanted.status))
    if wanted.since is not None:
        statement = statement.where(_EVENTS.c.received_at >= wanted.since)
    if wanted.until is not None:
        statement = statement.where(_EVENTS.c.received_at < wanted.until)
    return (await session.execute(statement)).scalars().all()
