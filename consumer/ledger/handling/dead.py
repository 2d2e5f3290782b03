"""Dead runs: their letters for the topic `events.dead`, and what an operator may do about them (cases R10, R12).

Runs that wait for a handler which no living worker has any more can be given up in the same way (case H7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    Table,
    and_,
    bindparam,
    false,
    func,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, unindexed
from consumer.ledger import audit, tables
from consumer.ledger.engine.counting import COUNT_MAX, numbered
from consumer.ledger.handling import handlers, lanes
from consumer.ledger.handling.events import EventKey, is_of_type
from consumer.ledger.handling.lanes import RunId
from consumer.ledger.handling.runs import these
from consumer.ledger.tables import AttemptRow, DeadLetterRow, EventRow, RunRow, RunStatus

_RUNS: Table = RunRow.__table__
_EVENTS: Table = EventRow.__table__
_LETTERS: Table = DeadLetterRow.__table__
_ATTEMPTS: Table = AttemptRow.__table__

DISCARDED = "discarded"
DISCARDED_WAITING = "discarded_waiting"
"""The codes of runs that were given up: when they were dead, and when they waited for a handler that is gone."""
ATTEMPTS_IN_LETTER = 100
DEATHS_MAX = 1000
_KEPT = ("application", "event_id", "handler", "blocking", "attempts", "code", "reason", "fingerprint", "code_version")


@dataclass(frozen=True, kw_only=True)
class DeadFilter:
    """Which dead runs are meant; None means any. `discarded` means the discarded ones instead. `waiting_at`: the
    waiting runs of `handler`, too, if as of this time no living worker has it, or one event of it is named. `keys`:
    (application, key) of whose they are."""

    application: str | None = None
    handler: str | None = None
    event_id: str | None = None
    type: str | None = None
    order_id: str | None = None
    subscription_id: str | None = None
    fingerprint: str | None = None
    keys: tuple[tuple[str, str], ...] | None = None
    since: datetime | None = None
    until: datetime | None = None
    discarded: bool = False
    waiting_at: datetime | None = None
    limit: int = 100


@dataclass(frozen=True, kw_only=True)
class DeadRun:
    """A dead (or discarded, or waiting) run with what there is to know of its event. `died_at` of one that is not
    dead: when it was changed last. `trace`: the author's lines that its last attempt failed in, innermost first."""

    application: str
    event_id: str
    handler: str
    seq: int
    key: str
    type: str
    status: str
    blocking: bool
    attempts: int
    code: str | None
    reason: str | None
    fingerprint: str | None
    code_version: str
    died_at: datetime
    trace: str | None = None

    @property
    def id(self) -> RunId:
        """(application, event id, handler)."""
        return (self.application, self.event_id, self.handler)


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A death that is not on the topic yet, with everything the topic gets."""

    row: DeadLetterRow
    event: EventRow
    attempts: Sequence[AttemptRow]


# --- dying -----------------------------------------------------------------------------------------------------


async def bury(session: AsyncSession, ids: Collection[RunId], now: datetime) -> None:
    """Write the letters of these runs, those of them that died `now`, in the transaction in which they died. A death
    that is stored again, as its commit was not acknowledged, has its letter."""
    columns = [_RUNS.c[name] for name in _KEPT]
    rows: list[dict[str, Any]] = []
    for condition in these(ids):
        dead = select(*columns).where(condition, lanes.stands(RunStatus.DEAD), unindexed(_RUNS.c.updated_at) == now)
        rows += [{**row, "died_at": now} for row in (await session.execute(dead)).mappings()]
    if rows:
        await session.execute(insert(_LETTERS), rows)


_UNPUBLISHED = (
    select(DeadLetterRow)
    .where(_LETTERS.c.published_at.is_(None), _LETTERS.c.id > bindparam("after"))
    .order_by(_LETTERS.c.id)
    .limit(bindparam("most"))
)


async def unpublished(session: AsyncSession, limit: int, after: int = 0) -> Sequence[Letter]:
    """Letters that the topic does not have yet, oldest first; `after`: only those behind the one of this number."""
    rows = (await session.execute(_UNPUBLISHED, {"most": limit, "after": after})).scalars().all()
    return [await _letter(session, row) for row in rows]


async def _letter(session: AsyncSession, row: DeadLetterRow) -> Letter:
    event = select(EventRow).where(_EVENTS.c.application == row.application, _EVENTS.c.id == row.event_id)
    attempts = (
        select(AttemptRow)
        .where(
            _ATTEMPTS.c.application == row.application,
            _ATTEMPTS.c.event_id == row.event_id,
            _ATTEMPTS.c.handler == row.handler,
            _ATTEMPTS.c.finished_at <= row.died_at,
        )
        .order_by(_ATTEMPTS.c.id.desc())
        .limit(ATTEMPTS_IN_LETTER)
    )
    kept = (await session.execute(attempts)).scalars().all()
    return Letter(row=row, event=(await session.execute(event)).scalar_one(), attempts=list(reversed(kept)))


async def mark_published(session: AsyncSession, letters: Sequence[Letter], now: datetime) -> None:
    """These are durable on the topic."""
    if letters:
        numbers = [letter.row.id for letter in letters]
        await session.execute(update(_LETTERS).where(among(_LETTERS.c.id, numbers)).values(published_at=now))


async def has_runs(session: AsyncSession, handler: str) -> bool:
    """Whether any run of this handler was ever recorded."""
    found = await session.scalar(select(_RUNS.c.event_id).where(_RUNS.c.handler == handler).limit(1))
    return found is not None


async def has_died_of(
    session: AsyncSession, fingerprint: str, *, since: datetime | None = None, but: EventKey | None = None
) -> bool:
    """Whether any of the last DEATHS_MAX deaths (`since` then; `but` that event's) was of this kind, whatever became of
    it."""
    span = await numbered(session, _LETTERS.c.id)
    if span is None:
        return False
    columns = (_LETTERS.c.application, _LETTERS.c.event_id, _LETTERS.c.fingerprint)
    lately = select(*columns).where(_LETTERS.c.id > span.last - DEATHS_MAX)
    if since is not None:
        lately = lately.where(_LETTERS.c.died_at >= since)
    found = await session.execute(lately)
    return any(kind == fingerprint and (application, event_id) != but for application, event_id, kind in found)


# --- looking ---------------------------------------------------------------------------------------------------


async def search(session: AsyncSession, wanted: DeadFilter) -> Sequence[DeadRun]:
    """The dead runs that fit, oldest event first."""
    found: list[DeadRun] = []
    for state in await _states(session, wanted):
        found += [DeadRun(**row) for row in (await session.execute(_matching(wanted, state))).mappings()]
    return sorted(found, key=lambda run: (run.seq, run.handler))[: wanted.limit]


async def totals(session: AsyncSession, wanted: DeadFilter) -> Counter[tuple[str, str | None]]:
    """How many runs fit, whatever the limit, by their kind: handler and fingerprint. Of COUNT_MAX runs at most: where
    there are more, a kind may have more than is said, and there may be more kinds."""
    kinds: Counter[tuple[str, str | None]] = Counter()
    event_type = _event_type(wanted)
    for state in await _states(session, wanted):
        fit = select(_RUNS.c.handler, _RUNS.c.fingerprint).where(state, *_conditions(wanted), event_type.is_not(None))
        found = fit.limit(COUNT_MAX).subquery()
        each = (found.c.handler, found.c.fingerprint)
        for handler, fingerprint, count in await session.execute(select(*each, func.count()).group_by(*each)):
            kinds[handler, fingerprint] += count
    return kinds


def _matching(wanted: DeadFilter, state: Any) -> Select[Any]:
    """Those in one state, which a partial index of just that state finds; their events one by one."""
    event_type = _event_type(wanted)
    columns = [_RUNS.c[name] for name in (*_KEPT, "seq", "key", "status")]
    return (
        select(*columns, _RUNS.c.updated_at.label("died_at"), event_type.label("type"), _last_trace())
        .where(state, *_conditions(wanted), event_type.is_not(None))
        .order_by(_RUNS.c.seq, _RUNS.c.handler)
        .limit(wanted.limit)
    )


def _event_type(wanted: DeadFilter) -> ScalarSelect[Any]:
    """Of the run's event, where that fits. No join: that may be turned round, and read all events."""
    fits = [_EVENTS.c.application == _RUNS.c.application, _EVENTS.c.id == _RUNS.c.event_id]
    for column, value in (
        (_EVENTS.c.order_id, wanted.order_id),
        (_EVENTS.c.subscription_id, wanted.subscription_id),
    ):
        if value is not None:
            fits.append(unindexed(column) == value)
    if wanted.type is not None:
        fits.append(is_of_type(unindexed(_EVENTS.c.type), wanted.type))
    return select(_EVENTS.c.type).where(*fits).limit(1).scalar_subquery()


def _last_trace() -> Any:
    same = and_(*[_ATTEMPTS.c[name] == _RUNS.c[name] for name in ("application", "event_id", "handler")])
    newest = select(_ATTEMPTS.c.trace).where(same).order_by(_ATTEMPTS.c.id.desc()).limit(1)
    return newest.scalar_subquery().label("trace")


async def _states(session: AsyncSession, wanted: DeadFilter) -> list[Any]:
    state, at, handler = _state(discarded=wanted.discarded), wanted.waiting_at, wanted.handler
    if at is None or handler is None:
        return [state]
    if wanted.event_id is None and not await handlers.gone(session, [handler], at):
        return [state]
    waits = (RunStatus.RETRYING, RunStatus.PARKED)
    return [state, *(and_(lanes.is_status(status), _is_unclaimed(at)) for status in waits)]


def _state(*, discarded: bool) -> Any:
    if discarded:
        return and_(_RUNS.c.status == RunStatus.SKIPPED.value, text(f"runs.{tables.DISCARDED}"))
    return lanes.is_status(RunStatus.DEAD)


def _stands(*, discarded: bool) -> Any:
    """The same of runs that were found by their ids (see `lanes.stands`)."""
    if discarded:
        return and_(lanes.stands(RunStatus.SKIPPED), unindexed(_RUNS.c.code).in_((DISCARDED, DISCARDED_WAITING)))
    return lanes.stands(RunStatus.DEAD)


def _waits(now: datetime) -> Any:
    """Unfinished, and nobody is at it."""
    return and_(lanes.stands(RunStatus.RETRYING, RunStatus.PARKED), _is_unclaimed(now))


def _is_unclaimed(now: datetime) -> Any:
    return or_(_RUNS.c.claimed_until.is_(None), _RUNS.c.claimed_until < now)


def _conditions(wanted: DeadFilter) -> list[Any]:
    exact = {
        _RUNS.c.application: wanted.application,
        _RUNS.c.handler: wanted.handler,
        _RUNS.c.event_id: wanted.event_id,
        _RUNS.c.fingerprint: wanted.fingerprint,
    }
    found = [column == value for column, value in exact.items() if value is not None]
    if wanted.since is not None:
        found.append(_RUNS.c.updated_at >= wanted.since)
    if wanted.until is not None:
        found.append(_RUNS.c.updated_at < wanted.until)
    if wanted.keys is not None:
        found.append(_is_of(wanted.keys))
    return found


def _is_of(keys: Collection[tuple[str, str]]) -> ColumnElement[bool]:
    """Of these (application, key), in words for which no planner leaves the index of the state for another."""
    named: dict[str, list[str]] = {}
    for where, one in keys:
        named.setdefault(where, []).append(one)
    application, key = unindexed(_RUNS.c.application), unindexed(_RUNS.c.key)
    return or_(false(), *[and_(application == where, among(key, of_it)) for where, of_it in named.items()])


# --- acting ----------------------------------------------------------------------------------------------------


async def redrive(session: AsyncSession, runs: Sequence[DeadRun], *, by: str, reason: str, now: datetime) -> int:
    """Let dead runs try again, with all their attempts, in their place in their lanes; returns how many did."""
    changed = await _change(
        session,
        runs,
        _stands(discarded=False),
        {"status": RunStatus.RETRYING.value, "blocking": True, "attempts": 0, "next_at": now, "claimed_by": None,
         "claimed_until": None, "updated_at": now},
    )  # fmt: skip
    _audit(session, changed, "dead.redrive", RunStatus.RETRYING.value, by=by, reason=reason, now=now)
    return len(changed)


async def discard(
    session: AsyncSession, runs: Sequence[DeadRun], *, by: str, reason: str, now: datetime, named: bool = False
) -> int:
    """Give runs up: they block nothing any more. `restore` takes it back. Takes dead ones, and waiting ones that nobody
    works on, of a handler that no living worker has, or that were `named` one by one; returns how many."""
    given_up = {"status": RunStatus.SKIPPED.value, "blocking": False, "updated_at": now}
    died = [run for run in runs if run.status == RunStatus.DEAD.value]
    died = await _change(session, died, _stands(discarded=False), {**given_up, "code": DISCARDED})
    gone = await handlers.gone(session, {run.handler for run in runs}, now)
    waited = [run for run in runs if run.status != RunStatus.DEAD.value and (named or run.handler in gone)]
    unclaimed = {"next_at": None, "claimed_by": None, "claimed_until": None}
    waited = await _change(session, waited, _waits(now), {**given_up, **unclaimed, "code": DISCARDED_WAITING})
    _audit(session, [*died, *waited], "dead.discard", DISCARDED, by=by, reason=reason, now=now)
    return len(died) + len(waited)


async def restore(session: AsyncSession, runs: Sequence[DeadRun], *, by: str, reason: str, now: datetime) -> int:
    """Take a discard back: the runs are dead again, or wait again, as they were, and what comes after them waits."""
    died, waited = [], []
    for run in runs:
        if run.code == DISCARDED_WAITING:
            # Parked, whether or not it is the head of its lane: a worker lets heads go, and it knows which those are.
            values = {"code": await _last_code(session, run), "blocking": True, "status": RunStatus.PARKED.value}
            waited += (changed := await _change(session, [run], _stands(discarded=True), values | {"updated_at": now}))
        else:
            letter = await _last_letter(session, run)
            values = {"code": letter.code, "blocking": letter.blocking} if letter else {"code": None, "blocking": True}
            values["status"] = RunStatus.DEAD.value
            died += (changed := await _change(session, [run], _stands(discarded=True), values | {"updated_at": now}))
        if changed and values["blocking"]:
            await _park_behind(session, run, now)
    _audit(session, died, "dead.restore", RunStatus.DEAD.value, by=by, reason=reason, now=now)
    _audit(session, waited, "dead.restore", RunStatus.PARKED.value, by=by, reason=reason, now=now)
    return len(died) + len(waited)


async def _change(session: AsyncSession, runs: Sequence[DeadRun], state: Any, values: dict[str, Any]) -> list[DeadRun]:
    """Set `values` on those that still are in `state`, and were not changed since they were looked at; returns them.
    Another operator may have been quicker, and one that he let try again may have died of something else."""
    shown = {run.id: run for run in runs}
    same: list[DeadRun] = []
    for condition in these(shown):
        now = select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler, _RUNS.c.updated_at)
        locked = now.where(condition, state).order_by(_RUNS.c.event_id, _RUNS.c.handler).with_for_update()
        rows = (await session.execute(locked)).all()
        found = [(shown[application, event_id, handler], at) for application, event_id, handler, at in rows]
        same += [run for run, at in found if run.died_at == at]
    for condition in these(run.id for run in same):
        await session.execute(update(_RUNS).where(condition).values(values))
    changed = {run.id for run in same}
    return [run for run in runs if run.id in changed]


async def _last_letter(session: AsyncSession, run: DeadRun) -> DeadLetterRow | None:
    letter: DeadLetterRow | None = await session.scalar(_newest(DeadLetterRow, _LETTERS, run))
    return letter


async def _last_code(session: AsyncSession, run: DeadRun) -> str | None:
    """How its last attempt ended, None before the first."""
    code: str | None = await session.scalar(_newest(_ATTEMPTS.c.code, _ATTEMPTS, run))
    return code


def _newest(what: Any, table: Table, run: DeadRun) -> Select[Any]:
    """Of the newest row about the run."""
    one = (table.c.application == run.application, table.c.event_id == run.event_id, table.c.handler == run.handler)
    return select(what).where(*one).order_by(table.c.id.desc()).limit(1)


async def _park_behind(session: AsyncSession, run: DeadRun, now: datetime) -> None:
    await session.execute(
        update(_RUNS)
        .where(
            _RUNS.c.application == run.application,
            _RUNS.c.key == run.key,
            _RUNS.c.handler == run.handler,
            _RUNS.c.seq > run.seq,
            _RUNS.c.blocking,
            lanes.stands(RunStatus.RETRYING),
            _is_unclaimed(now),
        )
        .values(status=RunStatus.PARKED.value, next_at=None, updated_at=now)
    )


def _audit(
    session: AsyncSession, runs: Sequence[DeadRun], action: str, after: str, *, by: str, reason: str, now: datetime
) -> None:
    for run in runs:
        audit.note(
            session,
            at=now,
            application=run.application,
            actor=by,
            action=action,
            subject=run.key,
            before=_said(run, DISCARDED if run.status == RunStatus.SKIPPED.value else run.status),
            after=_said(run, after),
            reason=reason,
            code_version=run.code_version,
        )


def _said(run: DeadRun, status: str) -> str:
    return orjson.dumps({"handler": run.handler, "event_id": run.event_id, "status": status}).decode()
