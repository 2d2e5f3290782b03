"""Candidates: the pairs (event, handler) that a replay could act on, and those it leaves alone (cases R1, R2, R4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, ScalarSelect, Select, Table, and_, func, literal, not_, or_, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, unindexed
from consumer.ledger.engine.chunks import matching
from consumer.ledger.engine.counting import each_of, up_to
from consumer.ledger.handling import lanes
from consumer.ledger.handling.events import is_of_type
from consumer.ledger.plans.tables import Action
from consumer.ledger.tables import EventRow, HintRow, OutboxRow, QuarantineRow, RunRow, RunStatus
from consumer.wire import SEED

_EVENTS: Table = EventRow.__table__
_RUNS: Table = RunRow.__table__
_OUTBOX: Table = OutboxRow.__table__
_HINTS: Table = HintRow.__table__
_QUARANTINE: Table = QuarantineRow.__table__

COUNTED_MAX: Final = 10_000
COUNTED_AT_ONCE: Final = 2_500
AWAY_LOOKED_AT: Final = 1_000
"""Of each handler that is there, so many of the newest events are asked whether it had them."""
ACTIONS: Final[Mapping[str, Action]] = {
    RunStatus.DEAD: Action.RETRY,
    RunStatus.RETRYING: Action.HASTEN,
    RunStatus.SUCCEEDED: Action.RERUN,
    RunStatus.SKIPPED: Action.RERUN,
}


@dataclass(frozen=True, kw_only=True)
class PlanFilter:
    """What a plan is about; None means any. Times are of an event's arrival. `status`, `fingerprint` and `code` are of
    runs. `forced`: also what succeeded; what was skipped (given up, say) only where `status` names it. What was taken
    in as history never fits (case B30). `also`: (application, key) of what belongs to the subscription
    or the customer, and whose events mostly do not say so."""

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
    also: tuple[tuple[str, str], ...] = ()

    @property
    def statuses(self) -> tuple[str, ...]:
        """The states of the runs that fit."""
        if self.status is not None:
            return (self.status,)
        dead = (RunStatus.DEAD.value,)
        return (*dead, RunStatus.SUCCEEDED.value) if self.forced else dead

    @property
    def takes_new(self) -> bool:
        """Whether pairs that never ran fit: with a handler, and nothing that only a run has."""
        return self.handler is not None and not (self.status or self.fingerprint or self.reason_code)

    @property
    def is_of_few(self) -> bool:
        """Whether it is about an event, an order or a subscription, and so about few events."""
        return not (self.event is None and self.order is None and self.subscription is None)

    def document(self) -> dict[str, Any]:
        """What was given, as JSON holds it."""
        given = {name: value for name, value in asdict(self).items() if value not in (None, False, ())}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in given.items()}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> PlanFilter:
        """The filter of a document."""
        times = {name: datetime.fromisoformat(document[name]) for name in ("since", "until") if name in document}
        also = tuple((application, key) for application, key in document.get("also", ()))
        return cls(**{**document, **times, "also": also})


@dataclass(frozen=True, kw_only=True, order=True)
class Pair:
    """An event and a handler, and what is to be done with them. `seq` is the event's place in the ledger; `key_plan`:
    the earlier plan that renewed the run's idempotency key, which the stored items of a plan do not tell."""

    seq: int
    handler: str
    application: str
    event_id: str
    key: str
    type: str
    action: Action
    key_plan: str | None = field(default=None, compare=False)

    @property
    def id(self) -> tuple[str, str, str]:
        """(application, event id, handler)."""
        return (self.application, self.event_id, self.handler)

    @property
    def lane(self) -> tuple[str, str, str]:
        """(application, handler, key): what is worked on in order."""
        return (self.application, self.handler, self.key)


async def pairs(
    session: AsyncSession, wanted: PlanFilter, types: Collection[str], limit: int
) -> tuple[Sequence[Pair], bool]:
    """The pairs that fit, at most `limit`, and what follows them, by arrival; and whether there are more. `types`: what
    the filter's handler wants, for pairs that never ran."""
    found = [_pair(row, ACTIONS[row.status]) for row in await _with_runs(session, wanted, types, limit + 1)]
    if wanted.takes_new and wanted.handler is not None:
        rows = await session.execute(_never_ran(wanted, types, limit + 1).where(*await _named(session, wanted)))
        found += [_pair(row, Action.START, wanted.handler) for row in rows]
    kept = sorted(found)[:limit]
    followers, more_follow = await _followers(session, kept, limit)
    return sorted([*kept, *followers]), len(found) > limit or more_follow


def _pair(row: Any, action: Action, handler: str | None = None) -> Pair:
    return Pair(
        seq=row.seq,
        handler=handler or row.handler,
        application=row.application,
        event_id=row.id,
        key=row.key,
        type=row.type,
        action=action,
        key_plan=None if action is Action.START else row.key_plan,
    )


_WAITING: Final = frozenset({RunStatus.DEAD, RunStatus.RETRYING, RunStatus.PARKED})
"""The states that have an index of their own."""
_PLAN: Final = func.coalesce(_RUNS.c.plan, "")
_OF_EVENT: Final = (_EVENTS.c.seq, _EVENTS.c.application, _EVENTS.c.id, _EVENTS.c.key, _EVENTS.c.type)
_SAME: Final = and_(_EVENTS.c.application == _RUNS.c.application, _EVENTS.c.id == _RUNS.c.event_id)
_TYPE: Final = select(_EVENTS.c.type).where(_SAME).correlate(_RUNS).scalar_subquery()
_OF_RUN: Final = (
    _RUNS.c.seq, _RUNS.c.application, _RUNS.c.event_id.label("id"), _RUNS.c.key, _TYPE.label("type"), _RUNS.c.handler,
    _RUNS.c.status, _RUNS.c.key_plan,
)  # fmt: skip


async def _with_runs(
    session: AsyncSession, wanted: PlanFilter, types: Collection[str], limit: int, *, seeded: bool = False
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Events and their runs that fit. What waits is found by its state, the rest by its event. No statement joins: each
    asks for one thing by an index, and tells of the other by a probe, which no planner turns round."""
    if wanted.is_of_few:
        return await _of_few(session, wanted, wanted.statuses, limit, seeded=seeded)
    if _WAITING.issuperset(wanted.statuses):
        states = [_by_state(wanted, RunStatus(one), limit, seeded=seeded) for one in wanted.statuses]
        return [row for state in states for row in await session.execute(state)]
    return list(await session.execute(_by_event(wanted, types, limit)))


async def _of_few(
    session: AsyncSession, wanted: PlanFilter, statuses: Collection[str], limit: int, *, seeded: bool
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Of the events of an id: few, whatever became of them."""
    fits = (*_conditions(wanted), *await _named(session, wanted))
    found = await session.execute(select(*_OF_EVENT).where(*fits).order_by(_EVENTS.c.seq).limit(limit))
    rows: list[Row[*tuple[Any, ...]]] = []
    for some in matching(_RUNS.c.event_id, (_RUNS.c.application,), ((row.id, row.application) for row in found)):
        stands = lanes.stands(*map(RunStatus, statuses))
        rows += await session.execute(select(*_OF_RUN).where(some, stands, *_run_conditions(wanted, seeded=seeded)))
    return rows


def _by_state(wanted: PlanFilter, status: RunStatus, limit: int, *, seeded: bool = False) -> Select[Any]:
    """Among the runs that stand so: by the partial index of them."""
    event = select(_EVENTS.c.type).where(_SAME, *_conditions(wanted)).limit(1).scalar_subquery()
    fits = (lanes.is_status(status), *_run_conditions(wanted, seeded=seeded), event.is_not(None))
    return select(*_OF_RUN).where(*fits).order_by(_RUNS.c.seq, _RUNS.c.handler).limit(limit)


def _by_event(wanted: PlanFilter, types: Collection[str], limit: int) -> Select[Any]:
    """Among the events that the handler wants: runs that are done are found by nothing else. Without a handler: runs as
    they were recorded."""
    if wanted.handler is None:
        event = select(_EVENTS.c.type).where(_SAME, *_conditions(wanted)).limit(1).scalar_subquery()
        stands = lanes.stands(*map(RunStatus, wanted.statuses))
        fits = (stands, *_run_conditions(wanted), event.is_not(None))
        return select(*_OF_RUN).where(*fits).order_by(_RUNS.c.seq, _RUNS.c.handler).limit(limit)
    stands = lanes.stands(*map(RunStatus, wanted.statuses))
    run = select(_RUNS.c.status).where(_SAME, stands, *_run_conditions(wanted)).limit(1).scalar_subquery()
    key_plan = _run_of(wanted.handler, _RUNS.c.key_plan).label("key_plan")
    columns = (*_OF_EVENT, literal(wanted.handler).label("handler"), run.label("status"), key_plan)
    statement = select(*columns).where(*_conditions(wanted), _wants(wanted, types), run.is_not(None))
    return statement.order_by(_EVENTS.c.seq).limit(limit)


def _never_ran(wanted: PlanFilter, types: Collection[str], limit: int) -> Select[Any]:
    return (
        select(*_OF_EVENT)
        .where(
            *_conditions(wanted),
            _wants(wanted, types),
            _run_of(wanted.handler).is_(None),
            *_not_seeded(),
        )
        .order_by(_EVENTS.c.seq)
        .limit(limit)
    )


def _run_of(handler: str | None, column: ColumnElement[Any] = _RUNS.c.event_id) -> ScalarSelect[Any]:
    """One probe an event: EXISTS may be turned into a join with everything that was ever run."""
    return select(column).where(_SAME, _RUNS.c.handler == handler).limit(1).scalar_subquery()


def _wants(wanted: PlanFilter, types: Collection[str]) -> Any:
    """The handler does: by the index of types, when nothing finds fewer."""
    return _is_of(types, is_sought=not wanted.is_of_few)


def _is_of(types: Collection[str], *, is_sought: bool) -> Any:
    column = _EVENTS.c.type if is_sought else unindexed(_EVENTS.c.type)
    if "*" in types:
        return true()
    return or_(*[is_of_type(column, one) for one in sorted(types)])


def _not_seeded() -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Not history that was taken in without effects: a replay is no way around that (case B30)."""
    # Of an event's own runs and emissions: in words that no index of plans is for.
    run = select(_RUNS.c.event_id).where(_SAME, _PLAN == SEED).limit(1)
    emitted = and_(_OUTBOX.c.application == _EVENTS.c.application, _OUTBOX.c.event_id == _EVENTS.c.id)
    derived = select(_OUTBOX.c.seq).where(emitted, func.coalesce(_OUTBOX.c.plan, "") == SEED).limit(1)
    return run.scalar_subquery().is_(None), derived.scalar_subquery().is_(None)


def _conditions(wanted: PlanFilter) -> list[Any]:
    """An event whose body lies in an archive cannot be handled again before it is back."""
    return [*_fits(wanted), _EVENTS.c.archive.is_(None)]


def _fits(wanted: PlanFilter) -> list[Any]:
    exact = {
        _EVENTS.c.application if wanted.event else unindexed(_EVENTS.c.application): wanted.application,
        _EVENTS.c.id: wanted.event,
        _EVENTS.c.order_id: wanted.order,
    }
    found = [column == value for column, value in exact.items() if value is not None]
    if wanted.subscription is not None:
        found.append(or_(_EVENTS.c.subscription_id == wanted.subscription, *_belonging(wanted, _EVENTS.c.key)))
    if wanted.customer is not None:
        found.append(or_(_EVENTS.c.customer == wanted.customer, *_belonging(wanted, unindexed(_EVENTS.c.key))))
    if wanted.type is not None:
        found.append(_is_of((wanted.type,), is_sought=False))
    if wanted.since is not None:
        found.append(_EVENTS.c.received_at >= wanted.since)
    if wanted.until is not None:
        found.append(unindexed(_EVENTS.c.received_at) < wanted.until)  # nearly all are: no index for it
    return found


def _belonging(wanted: PlanFilter, key: ColumnElement[str]) -> list[ColumnElement[bool]]:
    """Of what belongs to the customer, or to the subscription, in each application: by its key, or because the event
    names the order or the subscription."""
    found: list[ColumnElement[bool]] = []
    for application in sorted({where for where, _ in wanted.also}):
        keys = [one for where, one in wanted.also if where == application]
        ours = [among(key, keys)]
        if wanted.customer is not None:
            for kind, column in (("order:", _EVENTS.c.order_id), ("subscription:", _EVENTS.c.subscription_id)):
                ids = [one.removeprefix(kind) for one in keys if one.startswith(kind)]
                ours += [among(unindexed(column), ids)] if ids else []
        found.append(and_(unindexed(_EVENTS.c.application) == application, or_(*ours)))
    return found


async def _named(session: AsyncSession, wanted: PlanFilter) -> Sequence[ColumnElement[bool]]:
    """For an event's id without an application: the index begins with that."""
    if wanted.event is None or wanted.application is not None:
        return ()
    return (among(_EVENTS.c.application, await each_of(session, _EVENTS.c.application)),)


def _run_conditions(wanted: PlanFilter, *, seeded: bool = False) -> list[Any]:
    """History that was taken in without effects is left alone: for a plan it would have them (case B30)."""
    exact = {
        _RUNS.c.handler: wanted.handler,
        _RUNS.c.fingerprint: wanted.fingerprint,
        _RUNS.c.code: wanted.reason_code,
    }
    found = [column == value for column, value in exact.items() if value is not None]
    return [*found, _PLAN == SEED if seeded else _PLAN != SEED]


async def _followers(session: AsyncSession, found: Sequence[Pair], limit: int) -> tuple[list[Pair], bool]:
    """What is parked in the lanes of these, and goes on by itself once they are done; and whether there is more of it
    in lanes that are looked at together, of which at most `limit` are taken."""
    mine = {pair.id for pair in found}
    first = {pair.lane: pair.seq for pair in reversed(found)}
    rows: list[Pair] = []
    is_more = False
    named = ((key, application, handler) for application, handler, key in first)
    for some in matching(_RUNS.c.key, (_RUNS.c.application, _RUNS.c.handler), named):
        parked = select(*_OF_RUN).where(some, lanes.is_status(RunStatus.PARKED), _PLAN != SEED)
        of_some = (await session.execute(parked.order_by(_RUNS.c.seq).limit(limit + 1))).all()
        rows += [_pair(row, Action.FOLLOW) for row in of_some[:limit]]
        is_more |= len(of_some) > limit
    return [pair for pair in rows if pair.id not in mine and pair.seq > first[pair.lane]], is_more


async def left_alone(session: AsyncSession, wanted: PlanFilter) -> tuple[dict[str, Counter[str]], bool]:
    """Handler to how many runs that fit otherwise are left alone, by their state; and whether there are more than were
    counted. What waits is counted up to COUNTED_MAX, what is done of the newest COUNTED_MAX events."""
    others = [one for one in RunStatus if one.value not in wanted.statuses]
    found: dict[str, Counter[str]] = {}
    is_more = False
    for status in others:
        if status in _WAITING and not wanted.is_of_few:
            rows = (await session.execute(_by_state(wanted, status, COUNTED_MAX))).all()
            is_more |= _count(found, rows)
    done = others if wanted.is_of_few else [one for one in others if one not in _WAITING]
    newest = (await session.execute(_newest(wanted, await _named(session, wanted)))).all()
    ids = ((event_id, application) for application, event_id in newest)
    for some in matching(_RUNS.c.event_id, (_RUNS.c.application,), ids, COUNTED_AT_ONCE):
        of_some = select(_RUNS.c.handler, _RUNS.c.status, func.count()).where(
            some, lanes.stands(*done), *_run_conditions(wanted)
        )
        for handler, status, count in await session.execute(of_some.group_by(_RUNS.c.handler, _RUNS.c.status)):
            found.setdefault(handler, Counter())[status] += count
    return found, is_more or len(newest) == COUNTED_MAX


def _newest(wanted: PlanFilter, named: Sequence[ColumnElement[bool]]) -> Select[Any]:
    place = _EVENTS.c.seq if wanted.since is None or wanted.is_of_few else _EVENTS.c.received_at
    fits = select(_EVENTS.c.application, _EVENTS.c.id).where(*_conditions(wanted), *named)
    return fits.order_by(place.desc()).limit(COUNTED_MAX)


def _count(found: dict[str, Counter[str]], rows: Sequence[Row[*tuple[Any, ...]]]) -> bool:
    for row in rows:
        found.setdefault(row.handler, Counter())[row.status] += 1
    return len(rows) == COUNTED_MAX


async def seeded(session: AsyncSession, wanted: PlanFilter, types: Collection[str]) -> int:
    """How many would fit, were they not history taken in without effects: runs that wait, events that the handler never
    saw, and with force whatever became of them. Each counted up to COUNTED_MAX."""
    waiting = 0 if wanted.forced else len(await _with_runs(session, wanted, types, COUNTED_MAX, seeded=True))
    if wanted.handler is None or not (wanted.takes_new or wanted.forced):
        return waiting
    ran = _run_of(wanted.handler)
    fits = (
        *_conditions(wanted),
        *await _named(session, wanted),
        _wants(wanted, types),
        or_(ran.is_(None), _run_of(wanted.handler, _PLAN) == SEED) if wanted.forced else ran.is_(None),
        not_(and_(*_not_seeded())),
    )
    return waiting + await up_to(session, select(_EVENTS.c.seq).where(*fits), COUNTED_MAX)


async def archived(session: AsyncSession, wanted: PlanFilter, types: Collection[str]) -> int:
    """How many events might fit, did their bodies not lie in archives; counted up to COUNTED_MAX. What is dead or
    waits never does."""
    if not (wanted.takes_new or wanted.forced):
        return 0
    fits = (*_fits(wanted), *await _named(session, wanted), _EVENTS.c.archive.is_not(None))
    some = select(_EVENTS.c.seq).where(*fits, *([_wants(wanted, types)] if types else []))
    return await up_to(session, some, COUNTED_MAX)


async def missed(
    session: AsyncSession, handler: str, types: Collection[str], before: datetime | None, limit: int
) -> int:
    """How many events of these types a handler never had: they came before it was there (None: it never was), or, of
    the newest since, while it was away; counted up to `limit`. History that was taken in without effects is not among
    them."""
    wanted = PlanFilter(handler=handler)
    boundary = None
    if before is not None:
        later = select(_EVENTS.c.seq).where(_EVENTS.c.received_at >= before).order_by(_EVENTS.c.received_at).limit(1)
        boundary = await session.scalar(later)
    if boundary is None:
        return len((await session.execute(_never_ran(wanted, types, limit))).all())
    earlier = _never_ran(wanted, types, limit).where(_EVENTS.c.seq < boundary)
    found = len((await session.execute(earlier)).all())
    newest = select(_EVENTS.c.seq).where(_wants(wanted, types), _EVENTS.c.seq >= boundary)
    first = await session.scalar(newest.order_by(_EVENTS.c.seq.desc()).offset(AWAY_LOOKED_AT - 1).limit(1))
    away = _never_ran(wanted, types, limit - found).where(_EVENTS.c.seq >= (first or boundary))
    return found + (len((await session.execute(away)).all()) if found < limit else 0)


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
