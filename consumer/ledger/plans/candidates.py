"""Candidates: the pairs (event, handler) that a replay could act on, and those it leaves alone (cases R1, R2, R4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Select, Table, and_, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among
from consumer.ledger.engine.chunks import matching
from consumer.ledger.engine.counting import each_of
from consumer.ledger.handling.lanes import is_status
from consumer.ledger.plans.tables import Action
from consumer.ledger.tables import EventRow, HintRow, OutboxRow, QuarantineRow, RunRow, RunStatus
from consumer.wire import SEED

_EVENTS: Table = EventRow.__table__
_RUNS: Table = RunRow.__table__
_OUTBOX: Table = OutboxRow.__table__
_HINTS: Table = HintRow.__table__
_QUARANTINE: Table = QuarantineRow.__table__

COUNTED_MAX: Final = 20_000
ACTIONS: Final[Mapping[str, Action]] = {
    RunStatus.DEAD: Action.RETRY,
    RunStatus.RETRYING: Action.HASTEN,
    RunStatus.SUCCEEDED: Action.RERUN,
    RunStatus.SKIPPED: Action.RERUN,
}


@dataclass(frozen=True, kw_only=True)
class PlanFilter:
    """What a plan is about; None means any. Times are of an event's arrival. `status`, `fingerprint` and `code` are of
    runs. `forced`: also what succeeded, or was skipped."""

    since: datetime | None = None
    until: datetime | None = None
    type: str | None = None
    handler: str | None = None
    status: str | None = None
    order: str | None = None
    subscription: str | None = None
    customer: str | None = None
    event: str | None = None
    application: str | None = None
    fingerprint: str | None = None
    reason_code: str | None = None
    forced: bool = False

    @property
    def statuses(self) -> tuple[str, ...]:
        """The states of the runs that fit."""
        if self.status is not None:
            return (self.status,)
        dead = (RunStatus.DEAD.value,)
        return (*dead, RunStatus.SUCCEEDED.value, RunStatus.SKIPPED.value) if self.forced else dead

    @property
    def takes_new(self) -> bool:
        """Whether pairs that never ran fit: with a handler, and nothing that only a run has."""
        return self.handler is not None and not (self.status or self.fingerprint or self.reason_code)

    def document(self) -> dict[str, Any]:
        """What was given, as JSON holds it."""
        given = {name: value for name, value in asdict(self).items() if value not in (None, False)}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in given.items()}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> PlanFilter:
        """The filter of a document."""
        times = {name: datetime.fromisoformat(document[name]) for name in ("since", "until") if name in document}
        return cls(**{**document, **times})


@dataclass(frozen=True, kw_only=True, order=True)
class Pair:
    """An event and a handler, and what is to be done with them. `seq` is the event's place in the ledger."""

    seq: int
    handler: str
    application: str
    event_id: str
    key: str
    type: str
    action: Action

    @property
    def id(self) -> tuple[str, str, str]:
        """(application, event id, handler)."""
        return (self.application, self.event_id, self.handler)

    @property
    def lane(self) -> tuple[str, str, str]:
        """(application, handler, key): what is worked on in order."""
        return (self.application, self.handler, self.key)


async def pairs(session: AsyncSession, wanted: PlanFilter, types: Collection[str], limit: int) -> Sequence[Pair]:
    """The pairs that fit, at most `limit`, by arrival. `types`: what the filter's handler wants, for pairs that never
    ran."""
    found = [_pair(row, ACTIONS[row.status]) for row in await session.execute(_of_runs(wanted, limit))]
    if wanted.takes_new and wanted.handler is not None:
        rows = await session.execute(_never_ran(wanted, types, limit))
        found += [_pair(row, Action.START, wanted.handler) for row in rows]
    found = sorted(found)[:limit]
    return sorted([*found, *await _followers(session, found, limit)])


def _pair(row: Any, action: Action, handler: str | None = None) -> Pair:
    return Pair(
        seq=row.seq,
        handler=handler or row.handler,
        application=row.application,
        event_id=row.id,
        key=row.key,
        type=row.type,
        action=action,
    )


_OF_EVENT: Final = (_EVENTS.c.seq, _EVENTS.c.application, _EVENTS.c.id, _EVENTS.c.key, _EVENTS.c.type)
_SAME: Final = and_(_EVENTS.c.application == _RUNS.c.application, _EVENTS.c.id == _RUNS.c.event_id)


def _of_runs(wanted: PlanFilter, limit: int) -> Select[Any]:
    statement = select(*_OF_EVENT, _RUNS.c.handler, _RUNS.c.status).join(_RUNS, _SAME).where(*_conditions(wanted))
    # The word is in the statement itself where it is one, so that the partial index of it serves.
    words = [is_status(RunStatus(one)) for one in wanted.statuses]
    statement = statement.where(*_run_conditions(wanted), words[0] if len(words) == 1 else or_(*words))
    return statement.order_by(_EVENTS.c.seq, _RUNS.c.handler).limit(limit)


def _never_ran(wanted: PlanFilter, types: Collection[str], limit: int) -> Select[Any]:
    run = select(_RUNS.c.event_id).where(_SAME, _RUNS.c.handler == wanted.handler).exists()
    return (
        select(*_OF_EVENT)
        .where(*_conditions(wanted), _is_of(types), ~run, ~_is_seeded())
        .order_by(_EVENTS.c.seq)
        .limit(limit)
    )


def _is_of(types: Collection[str]) -> Any:
    if "*" in types:
        return text("1 = 1")
    return or_(*[_type_is(one) for one in sorted(types)])


def _type_is(pattern: str) -> Any:
    is_wildcard = pattern.endswith(".*")
    prefix = _EVENTS.c.type.startswith(pattern[:-1], autoescape=True)
    return prefix if is_wildcard else _EVENTS.c.type == pattern


def _is_seeded() -> Any:
    """History that was taken in without effects: a replay is no way around that (case B30)."""
    run = select(_RUNS.c.event_id).where(_SAME, _RUNS.c.plan == SEED).exists()
    emitted = and_(_OUTBOX.c.application == _EVENTS.c.application, _OUTBOX.c.event_id == _EVENTS.c.id)
    return or_(run, select(_OUTBOX.c.seq).where(emitted, _OUTBOX.c.plan == SEED).exists())


def _conditions(wanted: PlanFilter) -> list[Any]:
    """An event whose body lies in an archive cannot be handled again before it is back."""
    return [*_fits(wanted), _EVENTS.c.archive.is_(None)]


def _fits(wanted: PlanFilter) -> list[Any]:
    exact = {
        _EVENTS.c.application: wanted.application,
        _EVENTS.c.id: wanted.event,
        _EVENTS.c.order_id: wanted.order,
        _EVENTS.c.subscription_id: wanted.subscription,
        _EVENTS.c.customer: wanted.customer,
    }
    found = [column == value for column, value in exact.items() if value is not None]
    if wanted.type is not None:
        found.append(_type_is(wanted.type))
    if wanted.since is not None:
        found.append(_EVENTS.c.received_at >= wanted.since)
    if wanted.until is not None:
        found.append(_EVENTS.c.received_at < wanted.until)
    return found


def _run_conditions(wanted: PlanFilter) -> list[Any]:
    exact = {
        _RUNS.c.handler: wanted.handler,
        _RUNS.c.fingerprint: wanted.fingerprint,
        _RUNS.c.code: wanted.reason_code,
    }
    return [column == value for column, value in exact.items() if value is not None]


async def _followers(session: AsyncSession, found: Sequence[Pair], limit: int) -> list[Pair]:
    """What is parked in the lanes of these, and goes on by itself once they are done."""
    mine = {pair.id for pair in found}
    first = {pair.lane: pair.seq for pair in reversed(found)}
    rows: list[Pair] = []
    named = ((key, application, handler) for application, handler, key in first)
    for lanes in matching(_RUNS.c.key, (_RUNS.c.application, _RUNS.c.handler), named):
        parked = (
            select(*_OF_EVENT, _RUNS.c.handler)
            .join(_RUNS, _SAME)
            .where(
                _RUNS.c.blocking,
                is_status(RunStatus.PARKED),
                lanes,
            )
            .order_by(_EVENTS.c.seq)
            .limit(limit)
        )
        rows += [_pair(row, Action.FOLLOW) for row in await session.execute(parked)]
    return [pair for pair in rows if pair.id not in mine and pair.seq > first[pair.lane]]


async def left_alone(session: AsyncSession, wanted: PlanFilter) -> tuple[dict[str, Counter[str]], bool]:
    """Handler to how many runs that fit otherwise are left alone, by their state; and whether there are more than were
    counted (COUNTED_MAX)."""
    others = [one.value for one in RunStatus if one.value not in wanted.statuses]
    some = (
        select(_RUNS.c.handler, _RUNS.c.status)
        .join(_EVENTS, _SAME)
        .where(*_conditions(wanted), *_run_conditions(wanted), _RUNS.c.status.in_(others))
        .limit(COUNTED_MAX)
        .subquery()
    )
    counted = select(some.c.handler, some.c.status, func.count()).group_by(some.c.handler, some.c.status)
    found: dict[str, Counter[str]] = {}
    for handler, status, count in await session.execute(counted):
        found.setdefault(handler, Counter())[status] = count
    return found, sum(sum(one.values()) for one in found.values()) >= COUNTED_MAX


async def seeded(session: AsyncSession, wanted: PlanFilter, types: Collection[str]) -> int:
    """How many events would fit, were they not history taken in without effects; counted up to COUNTED_MAX."""
    if not wanted.takes_new:
        return 0
    run = select(_RUNS.c.event_id).where(_SAME, _RUNS.c.handler == wanted.handler).exists()
    some = select(_EVENTS.c.seq).where(*_conditions(wanted), _is_of(types), ~run, _is_seeded()).limit(COUNTED_MAX)
    return int((await session.execute(select(func.count()).select_from(some.subquery()))).scalar_one())


async def archived(session: AsyncSession, wanted: PlanFilter, types: Collection[str]) -> int:
    """How many events might fit, did their bodies not lie in archives; counted up to COUNTED_MAX. What is dead or
    waits never does."""
    if not (wanted.takes_new or wanted.forced):
        return 0
    some = select(_EVENTS.c.seq).where(*_fits(wanted), _EVENTS.c.archive.is_not(None))
    if types:
        some = some.where(_is_of(types))
    counted = select(func.count()).select_from(some.limit(COUNTED_MAX).subquery())
    return int((await session.execute(counted)).scalar_one())


async def missed(
    session: AsyncSession, handler: str, types: Collection[str], before: datetime | None, limit: int
) -> int:
    """How many events of these types came before a handler was there (None: it never was) and have no run of it;
    counted up to `limit`. History that was taken in without effects is not among them."""
    wanted = PlanFilter(handler=handler)
    statement = _never_ran(wanted, types, limit)
    if before is not None:
        later = select(_EVENTS.c.seq).where(_EVENTS.c.received_at >= before).order_by(_EVENTS.c.received_at).limit(1)
        boundary = await session.scalar(later)
        if boundary is not None:
            statement = statement.where(_EVENTS.c.seq < boundary)
    return len((await session.execute(statement)).all())


async def unproved(session: AsyncSession, event_id: str) -> str | None:
    """Where a delivery of this event lies that was never proved: "quarantined" or "unconfirmed"; None when nowhere, or
    when the event was proved meanwhile: what lies there beside it is another body (case R9)."""
    applications = await each_of(session, _EVENTS.c.application)
    is_proved = (among(_EVENTS.c.application, applications), _EVENTS.c.id == event_id)
    if await session.scalar(select(_EVENTS.c.id).where(*is_proved).limit(1)):
        return None
    if await session.scalar(select(_HINTS.c.event_id).where(_HINTS.c.event_id == event_id).limit(1)):
        return "unconfirmed"
    kept = select(_QUARANTINE.c.id).where(_QUARANTINE.c.event_id == event_id).limit(1)
    return "quarantined" if await session.scalar(kept) else None
