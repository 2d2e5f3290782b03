"""The runs: one handler's work on one event, unique by (application, event id, handler) (cases H1, G2).

Order per lane (application, handler, key): a run may start only when no earlier one of its lane is `blocking`. The
insert parks what comes behind; finishing promotes the next; `release_parked` catches what both missed because two
workers met (each saw the other's half only).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, and_, bindparam, exists, func, insert, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import insert_into
from consumer.ledger.tables import REASON_CHARS, AttemptRow, RunRow, RunStatus
from consumer.retry import OnDead

_RUNS: Table = RunRow.__table__
_EARLIER = _RUNS.alias("earlier")
_ATTEMPTS: Table = AttemptRow.__table__

Lane = tuple[str, str, str]
"""(application, handler, key): what is worked on in order."""

RunId = tuple[str, str, str]
"""(application, event id, handler)."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as it is to be stored."""

    application: str
    event_id: str
    handler: str
    seq: int
    key: str
    status: RunStatus
    blocking: bool
    attempts: int = 0
    next_at: datetime | None = None
    code: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    code_version: str = ""
    plan: str | None = None

    @property
    def id(self) -> RunId:
        """(application, event id, handler)."""
        return (self.application, self.event_id, self.handler)

    @property
    def has_failed(self) -> bool:
        """Whether an attempt was made and did not succeed."""
        return self.code is not None and self.status in (RunStatus.RETRYING, RunStatus.DEAD)


@dataclass(frozen=True, kw_only=True)
class ClaimedRun:
    """A due run that this worker may work on until its claim ends."""

    application: str
    event_id: str
    handler: str
    seq: int
    key: str
    attempts: int
    plan: str | None
    created_at: datetime
    due_at: datetime
    key_plan: str | None = None

    @property
    def id(self) -> tuple[str, str, str]:
        """(application, event id, handler)."""
        return (self.application, self.event_id, self.handler)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt as it is to be stored."""

    application: str
    event_id: str
    handler: str
    number: int
    outcome: str
    code: str | None
    reason: str | None
    fingerprint: str | None
    code_version: str
    worker: str
    started_at: datetime
    finished_at: datetime


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What a claimed run becomes."""

    run: ClaimedRun
    status: RunStatus
    blocking: bool
    attempts: int
    next_at: datetime | None = None
    code: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    code_version: str = ""


async def blocked_lanes(session: AsyncSession, keys: Collection[tuple[str, str]]) -> set[Lane]:
    """The lanes among these (application, key) where an unresolved run makes later ones wait."""
    if not keys:
        return set()
    names = {key for _, key in keys}
    statement = select(_RUNS.c.application, _RUNS.c.handler, _RUNS.c.key).where(
        _RUNS.c.blocking, _RUNS.c.key.in_(names)
    )
    found = await session.execute(statement.distinct())
    return {(application, handler, key) for application, handler, key in found if (application, key) in keys}


async def add(session: AsyncSession, runs: Sequence[Run], now: datetime) -> None:
    """Insert new runs; one that is there already is left as it is."""
    if runs:
        statement = insert_into(_RUNS, session.get_bind().dialect.name).on_conflict_do_nothing()
        await session.execute(statement, [_run_values(run, now) for run in runs])


def _run_values(run: Run, now: datetime) -> dict[str, Any]:
    return {
        "application": run.application,
        "event_id": run.event_id,
        "handler": run.handler,
        "seq": run.seq,
        "key": run.key,
        "status": run.status.value,
        "blocking": run.blocking,
        "attempts": run.attempts,
        "next_at": run.next_at,
        "code": run.code,
        "reason": run.reason,
        "fingerprint": run.fingerprint,
        "code_version": run.code_version,
        "plan": run.plan,
        "created_at": now,
        "updated_at": now,
    }


async def add_attempts(session: AsyncSession, attempts: Sequence[Attempt]) -> None:
    """Keep the attempts."""
    if attempts:
        await session.execute(insert(_ATTEMPTS), [_attempt_values(attempt) for attempt in attempts])


def _attempt_values(attempt: Attempt) -> dict[str, Any]:
    values = dict(attempt.__dict__)
    values["reason"] = (attempt.reason or "")[:REASON_CHARS] or None
    return values


def _has_earlier() -> Any:
    """Whether an earlier unresolved run of the same lane exists: then this one must not start."""
    return exists().where(
        _EARLIER.c.blocking,
        _EARLIER.c.application == _RUNS.c.application,
        _EARLIER.c.key == _RUNS.c.key,
        _EARLIER.c.handler == _RUNS.c.handler,
        _EARLIER.c.seq < _RUNS.c.seq,
    )


async def claim(
    session: AsyncSession, *, handler: str, worker: str, limit: int, now: datetime, lease_s: float
) -> Sequence[ClaimedRun]:
    """Take up to `limit` due runs of a handler for `lease_s` seconds, oldest first, heads of their lanes only."""
    due = (
        select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler)
        .where(
            _RUNS.c.status == RunStatus.RETRYING.value,
            _RUNS.c.next_at <= now,
            _RUNS.c.handler == handler,
            or_(_RUNS.c.claimed_until.is_(None), _RUNS.c.claimed_until < now),
            ~_has_earlier(),
        )
        .order_by(_RUNS.c.next_at, _RUNS.c.seq)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    picked = [(application, event_id, name) for application, event_id, name in await session.execute(due)]
    if not picked:
        return ()
    done = await session.execute(
        update(_RUNS)
        .where(_is_one_of(picked))
        .values(claimed_by=worker, claimed_until=now + timedelta(seconds=lease_s))
        .returning(
            _RUNS.c.application,
            _RUNS.c.event_id,
            _RUNS.c.handler,
            _RUNS.c.seq,
            _RUNS.c.key,
            _RUNS.c.attempts,
            _RUNS.c.plan,
            _RUNS.c.key_plan,
            _RUNS.c.created_at,
            _RUNS.c.next_at.label("due_at"),
        )
    )
    claimed = [ClaimedRun(**row) for row in done.mappings()]
    return sorted(claimed, key=lambda run: (run.due_at, run.seq))


def _is_one_of(ids: Collection[RunId]) -> Any:
    return tuple_(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler).in_(sorted(ids))


async def renew(session: AsyncSession, ids: Collection[RunId], *, worker: str, now: datetime, lease_s: float) -> None:
    """Keep this worker's claims for another `lease_s` seconds."""
    await session.execute(
        update(_RUNS)
        .where(_is_one_of(ids), _RUNS.c.claimed_by == worker)
        .values(claimed_until=now + timedelta(seconds=lease_s))
    )


async def give_back(session: AsyncSession, ids: Collection[RunId], *, worker: str) -> None:
    """End the claims of runs that were not finished."""
    await session.execute(
        update(_RUNS).where(_is_one_of(ids), _RUNS.c.claimed_by == worker).values(claimed_by=None, claimed_until=None)
    )


async def still_claimed(session: AsyncSession, run: ClaimedRun, *, worker: str) -> bool:
    """Lock the run and say whether it is still ours to finish; for transactional handlers, before they write."""
    row = (
        await session.execute(
            select(_RUNS.c.claimed_by, _RUNS.c.status)
            .where(
                _RUNS.c.application == run.application,
                _RUNS.c.event_id == run.event_id,
                _RUNS.c.handler == run.handler,
            )
            .with_for_update()
        )
    ).first()
    return row is not None and row.claimed_by == worker and row.status == RunStatus.RETRYING.value


async def finish(session: AsyncSession, finished: Sequence[Finish], *, worker: str, now: datetime) -> None:
    """Store what became of claimed runs, and let the next of each lane go.

    A success counts even when the claim was lost meanwhile (the effect is there); a failure only when it was not.
    """
    if not finished:
        return
    guard = and_(
        _RUNS.c.application == bindparam("b_application"),
        _RUNS.c.event_id == bindparam("b_event_id"),
        _RUNS.c.handler == bindparam("b_handler"),
        _RUNS.c.status == RunStatus.RETRYING.value,
    )
    # In key order, so that two workers that finish the same runs cannot lock each other out.
    rows = sorted((_finish_values(done, now) for done in finished), key=lambda row: row["b_event_id"])
    successes = [row for row in rows if row["status"] == RunStatus.SUCCEEDED.value]
    failures = [row for row in rows if row["status"] != RunStatus.SUCCEEDED.value]
    connection = await session.connection()
    if successes:
        await connection.execute(update(_RUNS).where(guard), successes)
    if failures:
        await connection.execute(update(_RUNS).where(guard, _RUNS.c.claimed_by == worker), failures)
    await _promote(session, {(f.run.application, f.run.handler, f.run.key) for f in finished if not f.blocking}, now)


def _finish_values(done: Finish, now: datetime) -> dict[str, Any]:
    return {
        "b_application": done.run.application,
        "b_event_id": done.run.event_id,
        "b_handler": done.run.handler,
        "status": done.status.value,
        "blocking": done.blocking,
        "attempts": done.attempts,
        "next_at": done.next_at,
        "code": done.code,
        "reason": (done.reason or "")[:REASON_CHARS] or None,
        "fingerprint": done.fingerprint,
        "code_version": done.code_version,
        "claimed_by": None,
        "claimed_until": None,
        "updated_at": now,
    }


async def _promote(session: AsyncSession, lanes: Collection[Lane], now: datetime) -> None:
    if lanes:
        of_lane = tuple_(_RUNS.c.application, _RUNS.c.handler, _RUNS.c.key).in_(sorted(lanes))
        await _let_heads_go(session, of_lane, now)


async def release_parked(session: AsyncSession, now: datetime, limit: int = 1000) -> int:
    """Let parked runs go that wait behind nothing any more; returns how many. Run now and then."""
    return await _let_heads_go(session, None, now, limit)


async def _let_heads_go(session: AsyncSession, where: Any, now: datetime, limit: int | None = None) -> int:
    heads = select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler).where(
        _RUNS.c.blocking, _RUNS.c.status == RunStatus.PARKED.value, ~_has_earlier()
    )
    if where is not None:
        heads = heads.where(where)
    if limit is not None:
        heads = heads.limit(limit)
    ids = [(application, event_id, handler) for application, event_id, handler in await session.execute(heads)]
    if ids:
        await session.execute(
            update(_RUNS)
            .where(_is_one_of(ids), _RUNS.c.status == RunStatus.PARKED.value)
            .values(status=RunStatus.RETRYING.value, next_at=now, updated_at=now)
        )
    return len(ids)


async def has_stranded(session: AsyncSession) -> bool:
    """Whether a parked run waits behind nothing any more (see `release_parked`)."""
    statement = select(exists().where(_RUNS.c.status == RunStatus.PARKED.value, ~_has_earlier()))
    return bool((await session.execute(statement)).scalar())


async def next_due(session: AsyncSession, now: datetime) -> dict[str, datetime]:
    """Handler to when its next run that nobody works on is due; it may be in the past."""
    statement = (
        select(_RUNS.c.handler, func.min(_RUNS.c.next_at))
        .where(
            _RUNS.c.status == RunStatus.RETRYING.value,
            or_(_RUNS.c.claimed_until.is_(None), _RUNS.c.claimed_until < now),
        )
        .group_by(_RUNS.c.handler)
    )
    return {handler: at for handler, at in await session.execute(statement) if at is not None}


def first_status(*, blocked: bool) -> RunStatus:
    """A run that cannot start yet is parked, else due at once."""
    return RunStatus.PARKED if blocked else RunStatus.RETRYING


def blocks_when_dead(on_dead: OnDead) -> bool:
    """Whether a dead run keeps its lane waiting."""
    return on_dead == "block"


async def of_event(session: AsyncSession, application: str, event_id: str) -> Sequence[RunRow]:
    """All runs of an event."""
    statement = select(RunRow).where(_RUNS.c.application == application, _RUNS.c.event_id == event_id)
    return (await session.execute(statement.order_by(_RUNS.c.handler))).scalars().all()


async def attempts_of(session: AsyncSession, application: str, event_id: str) -> Sequence[AttemptRow]:
    """The kept attempts of an event's runs, oldest first."""
    statement = select(AttemptRow).where(_ATTEMPTS.c.application == application, _ATTEMPTS.c.event_id == event_id)
    return (await session.execute(statement.order_by(_ATTEMPTS.c.id))).scalars().all()


async def count_by_status(session: AsyncSession) -> dict[tuple[str, str], int]:
    """(handler, status) to how many runs; succeeded ones are left out (there are many)."""
    statement = (
        select(_RUNS.c.handler, _RUNS.c.status, func.count())
        .where(_RUNS.c.status != RunStatus.SUCCEEDED.value)
        .group_by(_RUNS.c.handler, _RUNS.c.status)
    )
    return {(handler, status): count for handler, status, count in await session.execute(statement)}
