"""The recorded events: a duplicate is decided by the unique key (application, id), never by looking first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Executable, Row, Table, and_, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import Given, among, unindexed
from consumer.events import Event, Source, Trust
from consumer.ledger.engine.chunks import CHUNK, matching, portions
from consumer.ledger.engine.counting import COUNT_MAX, count_between, each_of, numbered
from consumer.ledger.handling import lanes
from consumer.ledger.tables import EventRow, RunRow, RunStatus

EventKey = tuple[str, str]
"""(application, event id)."""
SEARCHED_MAX: Final = 100_000
"""No search passes over more events than that, or over more runs of a handler that wait."""

_EVENTS: Table = EventRow.__table__
_RUNS: Table = RunRow.__table__
_WHOLE = [_EVENTS.c[name] for name in (
    "application", "id", "type", "key", "trust", "source", "raw", "received_at", "delivery_id", "object_id", "order_id",
    "subscription_id", "customer", "occurred_at", "traceparent",
)]  # fmt: skip
_NAMES = [column.name for column in _WHOLE]
_TRUSTS = {one.value: one for one in Trust}
_SOURCES = {one.value: one for one in Source}
_WAITING: Final[Mapping[str, tuple[Column[Any], ...]]] = {
    RunStatus.RETRYING: (_RUNS.c.next_at, _RUNS.c.seq),
    RunStatus.PARKED: (_RUNS.c.application, _RUNS.c.key, _RUNS.c.seq),
    RunStatus.DEAD: (_RUNS.c.seq,),
}
"""The states that have an index of their own, each with how that orders a handler's runs."""
_RECEIVED_AT = unindexed(_EVENTS.c.received_at)
_GIVEN = Given(_EVENTS, [*_NAMES, "recorded_at"], alike=["recorded_at"])


async def record(session: AsyncSession, events: Sequence[Event], now: datetime) -> Mapping[EventKey, int]:
    """Insert what is not there yet; returns the `seq` of each event that is new, in this transaction."""
    if not events:
        return {}
    dialect = session.get_bind().dialect.name
    done = await session.execute(_recording(dialect), _GIVEN.rows(dialect, [_values(event, now) for event in events]))
    return {(application, event_id): seq for application, event_id, seq in done}


@cache
def _recording(dialect: str) -> Executable:
    insert = _GIVEN.insert(dialect).on_conflict_do_nothing(index_elements=["application", "id"])
    return insert.returning(_EVENTS.c.application, _EVENTS.c.id, _EVENTS.c.seq)


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


async def get(session: AsyncSession, application: str, event_id: str) -> EventRow | None:
    """The event's row, or None."""
    found = select(EventRow).where(_EVENTS.c.application == application, _EVENTS.c.id == event_id)
    return (await session.scalars(found)).first()


async def load(session: AsyncSession, keys: Iterable[EventKey]) -> Mapping[EventKey, Event]:
    """The events, whole."""
    found: dict[EventKey, Event] = {}
    for these in _these(keys):
        for row in await session.execute(select(*_WHOLE).where(these)):
            event = _event(dict(zip(_NAMES, row, strict=True)))
            found[event.application, event.id] = event
    return found


def _these(keys: Iterable[EventKey]) -> Iterator[ColumnElement[bool]]:
    return matching(_EVENTS.c.id, (_EVENTS.c.application,), ((event_id, name) for name, event_id in keys))


def to_event(row: EventRow | Row[Any]) -> Event:
    """The event in a row, as the handlers see it."""
    return _event({name: getattr(row, name) for name in _NAMES})


def _event(values: dict[str, Any]) -> Event:
    return Event(**values | {"trust": _TRUSTS[values["trust"]], "source": _SOURCES[values["source"]]})


async def told(session: AsyncSession, application: str, keys: Sequence[str]) -> Mapping[str, Mapping[str, datetime]]:
    """Aggregate to the types of its events, each with when the newest was received; one without any event is not in
    it."""
    found: dict[str, dict[str, datetime]] = {}
    for some in portions(keys, CHUNK):
        statement = (
            select(_EVENTS.c.key, _EVENTS.c.type, func.max(_EVENTS.c.received_at))
            .where(unindexed(_EVENTS.c.application) == application, among(_EVENTS.c.key, some))
            .group_by(_EVENTS.c.key, _EVENTS.c.type)
        )
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
    """Which events a listing shows; None means any. `keys`: (application, key) of whose they are. `fingerprint`: of
    what a run of theirs failed."""

    application: str | None = None
    type: str | None = None
    event_id: str | None = None
    order_id: str | None = None
    subscription_id: str | None = None
    handler: str | None = None
    status: str | None = None
    fingerprint: str | None = None
    keys: tuple[tuple[str, str], ...] | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 100


@dataclass(frozen=True)
class Found:
    """The newest events that fit, newest first. `is_all`: no older one fits that was not looked at."""

    rows: Sequence[EventRow]
    is_all: bool


@dataclass(frozen=True, kw_only=True)
class _Walk:
    """Events from the newest on `along` a column, by an index that finds what is `sought`: these words of the filter
    (`by`). `has_few`: those of an id are all looked at."""

    along: Column[Any]
    by: frozenset[str] = frozenset()
    sought: Sequence[ColumnElement[bool]] = ()
    has_few: bool = False

    async def end(self, session: AsyncSession) -> Any:
        """What lies SEARCHED_MAX events back; None: not so many."""
        beyond = select(self.along).where(*self.sought).order_by(self.along.desc()).offset(SEARCHED_MAX).limit(1)
        return None if self.has_few else await session.scalar(beyond)


async def search(session: AsyncSession, wanted: EventFilter) -> Found:
    """The newest events that fit, at most `limit`. Those of an id are all looked at, and those with a run that waits or
    is dead, however old; else the newest SEARCHED_MAX of the time, or of the type, that is asked for."""
    if wanted.keys is not None:
        return await _of_keys(session, wanted, wanted.keys)
    has_id = (wanted.event_id, wanted.order_id, wanted.subscription_id) != (None, None, None)
    if wanted.status is not None and wanted.status in _WAITING and not has_id:
        return await _of_runs(session, wanted, RunStatus(wanted.status))
    walk = await _walk(session, wanted)
    passed_over = _passed_over(wanted, walk.by)
    end = await walk.end(session) if passed_over else None
    within = [] if end is None else [walk.along > end]
    statement = select(EventRow).where(*walk.sought, *within, *passed_over)
    rows = (await session.scalars(statement.order_by(walk.along.desc()).limit(wanted.limit))).all()
    return Found(sorted(rows, key=lambda row: -row.seq), is_all=end is None or len(rows) == wanted.limit)


async def _of_keys(session: AsyncSession, wanted: EventFilter, keys: Collection[tuple[str, str]]) -> Found:
    """Key by key, along the index that finds them in order: a planner may walk through all events for many at once."""
    rows: list[EventRow] = []
    rest = _passed_over(wanted, ("application",))
    for application, key in keys:
        of_key = select(EventRow).where(_EVENTS.c.key == key, _EVENTS.c.application == application, *rest)
        rows += (await session.scalars(of_key.order_by(_EVENTS.c.seq.desc()).limit(wanted.limit))).all()
    return Found(sorted(rows, key=lambda row: -row.seq)[: wanted.limit], is_all=True)


async def _of_runs(session: AsyncSession, wanted: EventFilter, status: RunStatus) -> Found:
    """From the runs that stand like this, handler by handler, along the index of those: behind them may lie any number
    of events that are done with."""
    stands = lanes.is_status(status)
    named = [wanted.handler] if wanted.handler is not None else await each_of(session, _RUNS.c.handler, stands)
    keys, is_all = set[EventKey](), True
    for handler in named:
        mine = [stands, _RUNS.c.handler == handler]
        if wanted.application is not None:
            mine.append(unindexed(_RUNS.c.application) == wanted.application)
        if wanted.fingerprint is not None:
            mine.append(_RUNS.c.fingerprint == wanted.fingerprint)
        in_order = select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.seq).where(*mine).order_by(*_WAITING[status])
        is_all = is_all and (await session.execute(in_order.offset(SEARCHED_MAX).limit(1))).first() is None
        some = in_order.limit(SEARCHED_MAX).subquery()
        event = and_(_EVENTS.c.application == some.c.application, _EVENTS.c.id == some.c.event_id)
        rest = _passed_over(replace(wanted, handler=None, status=None, fingerprint=None), ("application",))
        fits = select(_EVENTS.c.id).where(event, *rest).limit(1).scalar_subquery().is_not(None)
        newest = select(some.c.application, some.c.event_id).where(fits).order_by(some.c.seq.desc())
        keys |= {(name, id_) for name, id_ in await session.execute(newest.limit(wanted.limit))}
    rows: list[EventRow] = []
    for these in _these(keys):
        rows += (await session.scalars(select(EventRow).where(these))).all()
    return Found(sorted(rows, key=lambda row: -row.seq)[: wanted.limit], is_all=is_all)


async def _walk(session: AsyncSession, wanted: EventFilter) -> _Walk:
    seq, at = _EVENTS.c.seq, _EVENTS.c.received_at
    if wanted.event_id is not None:
        applications = [wanted.application] if wanted.application else await each_of(session, _EVENTS.c.application)
        sought = [among(_EVENTS.c.application, applications), _EVENTS.c.id == wanted.event_id]
        return _Walk(along=seq, by=frozenset({"application", "event_id"}), sought=sought, has_few=True)
    for name in ("order_id", "subscription_id"):
        if (value := getattr(wanted, name)) is not None:
            return _Walk(along=seq, by=frozenset({name}), sought=[_EVENTS.c[name] == value], has_few=True)
    since, until = wanted.since, wanted.until
    if since is not None or until is not None:
        sought = [*([] if since is None else [at >= since]), *([] if until is None else [at < until])]
        return _Walk(along=at, by=frozenset({"since", "until"}), sought=sought)
    if wanted.type is not None and not wanted.type.endswith(".*"):
        return _Walk(along=seq, by=frozenset({"type"}), sought=[_EVENTS.c.type == wanted.type])
    return _Walk(along=seq)


def _passed_over(wanted: EventFilter, sought: Collection[str]) -> list[ColumnElement[bool]]:
    """The rest of the filter, in words for which no planner leaves the walk's index for another."""
    conditions: dict[str, Callable[[Any], ColumnElement[bool]]] = {
        "application": lambda value: unindexed(_EVENTS.c.application) == value,
        "event_id": lambda value: unindexed(_EVENTS.c.id) == value,
        "order_id": lambda value: unindexed(_EVENTS.c.order_id) == value,
        "subscription_id": lambda value: unindexed(_EVENTS.c.subscription_id) == value,
        "type": lambda value: is_of_type(unindexed(_EVENTS.c.type), value),
        "since": lambda value: value <= _RECEIVED_AT,
        "until": lambda value: value > _RECEIVED_AT,
    }
    given = {name: getattr(wanted, name) for name in conditions if name not in sought}
    found = [conditions[name](value) for name, value in given.items() if value is not None]
    of_run = (wanted.handler, wanted.status, wanted.fingerprint)
    return found if of_run == (None, None, None) else [*found, _has_run(*of_run)]


def is_of_type(kind: ColumnElement[str], pattern: str) -> ColumnElement[bool]:
    """Whether a type (its column, or `unindexed` of that) is the pattern's, where `order.*` is each that begins so."""
    return kind.startswith(pattern[:-1], autoescape=True) if pattern.endswith(".*") else kind == pattern


def _has_run(handler: str | None, status: str | None, fingerprint: str | None) -> ColumnElement[bool]:
    """One probe an event: EXISTS may be turned into a join with everything that was ever run."""
    run = select(_RUNS.c.event_id).where(_RUNS.c.application == _EVENTS.c.application, _RUNS.c.event_id == _EVENTS.c.id)
    if handler is not None:
        run = run.where(_RUNS.c.handler == handler)
    if status is not None:
        run = run.where(unindexed(_RUNS.c.status) == status)
    if fingerprint is not None:
        run = run.where(_RUNS.c.fingerprint == fingerprint)
    return run.limit(1).scalar_subquery().is_not(None)
