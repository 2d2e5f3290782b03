"""The runs: one handler's work on one event, unique by (application, event id, handler) (cases H1, G2).

Order per lane (application, handler, key): a run may start only when no earlier one of its lane is `blocking`. The
insert parks what comes behind, and so does a claim; finishing promotes the next; `lanes.stranded` finds what all of
them missed because two workers met (each saw the other's half only).

No statement's cost may depend on how many runs are finished, or on what the database's statistics say of them (see
decision 10): what is sought is reached by one index, from an equality, or in the order in which the index lies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Executable,
    Integer,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import SET_BACK
from consumer.columns import Given, among_given
from consumer.ledger import processes
from consumer.ledger.engine.chunks import grouped, matching
from consumer.ledger.handling import lanes
from consumer.ledger.handling.lanes import Lane, RunId
from consumer.ledger.tables import REASON_CHARS, HandlerPauseRow, HandlerRow, RunRow, RunStatus
from consumer.retry import OnDead

_RUNS: Table = RunRow.__table__
_HANDLERS: Table = HandlerRow.__table__
_PAUSES: Table = HandlerPauseRow.__table__
_STILL_RETRYING = lanes.stands(RunStatus.RETRYING)
_STILL_PARKED = lanes.stands(RunStatus.PARKED)
_ID = ("application", "event_id", "handler")
_CLAIMED = (*_ID, "seq", "key", "attempts", "plan", "key_plan", "created_at", "next_at")
_CLAIMED_FIELDS = (*_CLAIMED[:-1], "due_at")

INSTANT: Final = timedelta(microseconds=1)
"""The least that a time can be later than another."""
CLAIM_ROUNDS = 10
PUT_ASIDE_AT_ONCE = 1000
SET_BACK_AT_ONCE = 2000
ALONE: Final = "/alone"
"""Behind the name of a worker that works on this run, and on nothing else: if its process ends, it was this one."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as it is to be stored; `trace` is its attempt's, for the log."""

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
    trace: str | None = None

    @property
    def id(self) -> RunId:
        """(application, event id, handler)."""
        return (self.application, self.event_id, self.handler)


@dataclass(frozen=True, kw_only=True)
class ClaimedRun:
    """A due run that this worker may work on until its claim ends. `left_by`: who worked on it, on nothing else, never
    came to an end, and has not been heard since."""

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
    left_by: str | None = None

    @property
    def id(self) -> tuple[str, str, str]:
        """(application, event id, handler)."""
        return (self.application, self.event_id, self.handler)


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What a claimed run becomes. `held_until`: whenever it is due, nobody takes it before then."""

    run: ClaimedRun
    status: RunStatus
    blocking: bool
    attempts: int
    next_at: datetime | None = None
    held_until: datetime | None = None
    code: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    code_version: str = ""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What storing the ends of runs came to. `let_go`: how many others are due because of them; `stored`: those whose
    end counts; `revived`: those of them that had died meanwhile of another worker's attempt, and had succeeded here."""

    let_go: int = 0
    stored: frozenset[RunId] = frozenset()
    revived: frozenset[RunId] = frozenset()


async def add(session: AsyncSession, runs: Sequence[Run], now: datetime, done_at: datetime | None = None) -> None:
    """Insert new runs; one that is there already is left as it is. Those that succeeded were handled in this order: the
    first at `done_at` (`now`, where it is left out), each INSTANT after the one before it."""
    if runs:
        dialect = session.get_bind().dialect.name
        words = _WORDS if any(getattr(run, name) for run in runs for name in _WORDS) else ()
        rows, done_at = [], done_at or now
        for run in runs:
            rows.append(_run_values(run, now, words))
            if run.status is RunStatus.SUCCEEDED:
                rows[-1]["updated_at"] = done_at
                done_at += INSTANT
        await session.execute(_adding(dialect, words), _added(words).rows(dialect, rows))


@cache
def _adding(dialect: str, words: Sequence[str]) -> Executable:
    return _added(words).insert(dialect).on_conflict_do_nothing()


_WORDS = ("code", "reason", "fingerprint", "plan")
"""What a run has that failed, or that a plan began: few do, and what nothing is sent of is NULL."""


@cache
def _added(words: Sequence[str]) -> Given:
    return Given(
        _RUNS,
        ("application", "event_id", "handler", "seq", "key", "status", "blocking", "attempts", "next_at",
         "code_version", "created_at", "updated_at", *words),
        alike=("created_at",),
    )  # fmt: skip


def _run_values(run: Run, now: datetime, words: Sequence[str]) -> dict[str, Any]:
    values = {
        "application": run.application,
        "event_id": run.event_id,
        "handler": run.handler,
        "seq": run.seq,
        "key": run.key,
        "status": run.status.value,
        "blocking": run.blocking,
        "attempts": run.attempts,
        "next_at": run.next_at,
        "code_version": run.code_version,
        "created_at": now,
        "updated_at": now,
    }
    return values | {name: getattr(run, name) for name in words} if words else values


async def claim(
    session: AsyncSession,
    *,
    handler: str,
    worker: str,
    limit: int,
    now: datetime,
    lease_s: float,
    over: datetime | None = None,
    alone: bool = False,
) -> Sequence[ClaimedRun]:
    """Take up to `limit` due runs of a handler for `lease_s` seconds, oldest first, heads of their lanes only. Of one
    that is paused none, whether or not the worker has heard of it. `over`: a claim that ended before then holds nobody
    off; now, where it is left out. `alone`: the worker works on nothing else until the run has come to an end.

    One that is due and leads nothing (two workers met, or an operator put another before it) is parked, so that no
    claim sees it again before its turn. So is one whose handler is paused for its application alone: behind however
    many of those, others' are found. `release` lets them go when that is over.
    """
    claimed: list[ClaimedRun] = []
    for _ in range(CLAIM_ROUNDS):
        asked = {"handler": handler, "now": now, "over": over or now, "limit": limit - len(claimed)}
        found = (await session.execute(_DUE, asked)).all()
        leading = [row for row in found if row.head == row.event_id and not row.is_held]
        claimed += [_claimed_run(row, left_by=row.left_by) for row in leading]
        claim = {"claimed_by": _claim_of(worker, alone=alone), "claimed_until": now + timedelta(seconds=lease_s)}
        await _set(session, map(_id_of, leading), claim)
        behind = [_id_of(row) for row in found if row.head != row.event_id]
        await _set(session, behind, {"status": RunStatus.PARKED.value, "next_at": None, "updated_at": now})
        is_any_held = len(leading) + len(behind) < len(found)
        if is_any_held:
            await put_aside(session, handler=handler, now=now, over=over or now)
        if not (behind or is_any_held) or len(claimed) == limit:
            break
    return claimed


async def put_aside(session: AsyncSession, *, handler: str, now: datetime, over: datetime) -> None:
    """Park those of a handler's next due runs for whose application alone it is paused: many at once, so that others
    wait for few looks. That a worker left one behind is forgotten, as when its handler is resumed."""
    coming = await session.execute(_HELD, {"handler": handler, "now": now, "over": over, "limit": PUT_ASIDE_AT_ONCE})
    held: list[RunId] = []
    for given in _given(map(_id_of, coming)):
        held += [_id_of(row) for row in await session.execute(_TO_PUT_ASIDE, {**given, "over": over})]
    aside = {"status": RunStatus.PARKED.value, "next_at": None, "claimed_by": None, "claimed_until": None}
    await _set(session, held, {**aside, "updated_at": now})


async def claim_new(
    session: AsyncSession, added: Iterable[Run], *, worker: str, now: datetime, lease_s: float
) -> Sequence[ClaimedRun]:
    """Of runs that this transaction adds, take those that `claim` would find due, for `lease_s` seconds."""
    until = now + timedelta(seconds=lease_s)
    claimed: list[ClaimedRun] = []
    for given in _given(run.id for run in added):
        asked = {**given, "now": now, "over": now, "claimed_by": worker, "claimed_until": until}
        claimed += [_claimed_run(row) for row in await session.execute(_CLAIM_NEW, asked)]
    return sorted(claimed, key=lambda run: run.seq)


_NOW: BindParameter[Any] = bindparam("now", type_=_RUNS.c.next_at.type)
IS_UNCLAIMED = or_(
    _RUNS.c.claimed_until.is_(None), _RUNS.c.claimed_until < bindparam("over", type_=_RUNS.c.claimed_until.type)
)
IS_ALONE = _RUNS.c.claimed_by.like(literal_column(f"'%{ALONE}'"))
_WORKER = func.replace(_RUNS.c.claimed_by, literal_column(f"'{ALONE}'"), literal_column("''"))
_HEAD = lanes.head_of(_RUNS.c.application, _RUNS.c.handler, _RUNS.c.key).label("head")


def _is_due(handler: BindParameter[Any]) -> tuple[ColumnElement[bool], ...]:
    is_paused = exists().where(_HANDLERS.c.name == handler, _HANDLERS.c.paused_at.is_not(None))
    return (_RUNS.c.handler == handler, _RUNS.c.next_at <= _NOW, IS_UNCLAIMED, ~is_paused)


def _is_held(handler: BindParameter[Any], application: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether the handler is paused for this application alone."""
    return exists().where(_PAUSES.c.handler == handler, _PAUSES.c.application == application)


_IS_LEFT = and_(IS_ALONE, ~processes.lived_on(_WORKER, _RUNS.c.claimed_until))
_DUE = (
    select(
        *[_RUNS.c[name] for name in _CLAIMED],
        _HEAD,
        case((_IS_LEFT, _WORKER)).label("left_by"),
        _is_held(bindparam("handler"), _RUNS.c.application).label("is_held"),
    )
    .where(lanes.is_status(RunStatus.RETRYING), *_is_due(bindparam("handler")))
    .order_by(_RUNS.c.next_at, _RUNS.c.seq)
    .limit(bindparam("limit", type_=Integer))
    .with_for_update(skip_locked=True, of=_RUNS)
)
"""Due runs of a handler that nobody works on, oldest first by index `ix_runs_queue`, each with the head of its lane. It
passes over what is worked on now, which is no more than all workers together do at once."""


def _held() -> Select[Any]:
    coming = (
        select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler)
        .where(lanes.is_status(RunStatus.RETRYING), *_is_due(bindparam("handler")))
        .order_by(_RUNS.c.next_at, _RUNS.c.seq)
        .limit(bindparam("limit", type_=Integer))
        .subquery()
    )
    return select(coming).where(_is_held(bindparam("handler"), coming.c.application))


_HELD = _held()


def _id_of(row: Any) -> RunId:
    return (row.application, row.event_id, row.handler)


def _claimed_run(row: Any, *, left_by: str | None = None) -> ClaimedRun:
    given = zip(_CLAIMED_FIELDS, row, strict=False)  # `_DUE` tells the lane's head, too
    return ClaimedRun(**dict(given), left_by=left_by)


def these(ids: Iterable[RunId]) -> Iterator[ColumnElement[bool]]:
    """Conditions that together take in just these runs: a few hundred of one application and handler each, by the
    primary key, in one order for all."""
    yield from matching(
        _RUNS.c.event_id, (_RUNS.c.application, _RUNS.c.handler), ((event_id, app, name) for app, event_id, name in ids)
    )


# Asked thousands of times a minute, so built once: a few hundred runs of one application and handler, as `these`.
_GIVEN = and_(
    among_given(_RUNS.c.event_id, "b_event_ids"),
    _RUNS.c.application == bindparam("b_application"),
    _RUNS.c.handler == bindparam("b_handler"),
)
_SET = update(_RUNS).where(_GIVEN)
_IS_OURS = _RUNS.c.claimed_by.in_([bindparam("b_worker"), bindparam("b_alone")])
_SET_OURS = _SET.where(_IS_OURS)
_GIVE_BACK = _SET_OURS.values(claimed_by=null(), claimed_until=null())
_RENEW_NOT_ALONE = _SET_OURS.values(claimed_until=bindparam("claimed_until"), claimed_by=bindparam("b_worker"))
_UNMARK = _SET.where(IS_ALONE, _RUNS.c.claimed_until < bindparam("b_now", type_=_RUNS.c.claimed_until.type)).values(
    claimed_by=null()
)
_SET_DONE = _SET.where(lanes.stands(RunStatus.RETRYING, RunStatus.PARKED))
"""Also of one that was put aside meanwhile."""
_SET_REVIVED = _SET.where(lanes.stands(RunStatus.DEAD))
_AS_THEY_ARE = select(
    _RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler, _RUNS.c.status, _RUNS.c.plan, _RUNS.c.updated_at
).where(_GIVEN)
_STILL_OURS = select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler).where(_GIVEN, _STILL_RETRYING, _IS_OURS)
_CLAIM_NEW = (
    _SET.where(
        _STILL_RETRYING,
        *_is_due(bindparam("b_handler")),
        _RUNS.c.event_id == _HEAD,
        ~_is_held(bindparam("b_handler"), bindparam("b_application")),
    )
    .values(claimed_by=bindparam("claimed_by"), claimed_until=bindparam("claimed_until"))
    .returning(*[_RUNS.c[name] for name in _CLAIMED])
)
_LOCK = select(_RUNS.c.event_id).where(_GIVEN).order_by(_RUNS.c.event_id).with_for_update()
_TO_RENEW = (
    select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler)
    .where(_GIVEN, _IS_OURS)
    .order_by(_RUNS.c.event_id)
    .with_for_update(skip_locked=True)
)
_TO_PUT_ASIDE = (
    select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler)
    .where(_GIVEN, _STILL_RETRYING, IS_UNCLAIMED)
    .order_by(_RUNS.c.event_id)
    .with_for_update(skip_locked=True)
)
_TO_LET_GO = (
    select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler)
    .where(_GIVEN, _STILL_PARKED)
    .order_by(_RUNS.c.event_id)
    .with_for_update(skip_locked=True)
)


def _claim_of(worker: str, *, alone: bool) -> str:
    return f"{worker}{ALONE}" if alone else worker


def _ours(worker: str) -> dict[str, str]:
    """What `_IS_OURS` is sent with."""
    return {"b_worker": worker, "b_alone": _claim_of(worker, alone=True)}


def _given(ids: Iterable[RunId]) -> Iterator[dict[str, Any]]:
    """What `_GIVEN` is sent with, in one order for all."""
    for (application, handler), found in grouped(((app, name), event_id) for app, event_id, name in ids):
        yield {"b_application": application, "b_handler": handler, "b_event_ids": found}


async def _set(
    session: AsyncSession, ids: Iterable[RunId], values: Mapping[str, Any], statement: Update = _SET
) -> None:
    for given in _given(ids):
        await session.execute(statement, {**given, **values})


async def renew(
    session: AsyncSession, ids: Collection[RunId], *, worker: str, now: datetime, lease_s: float, alone: bool = False
) -> set[RunId]:
    """Keep this worker's claims for another `lease_s` seconds; returns those that are kept. `alone`: see `claim`; else
    one that was is no longer.

    None waits for one that is locked, else all would end meanwhile. A transactional attempt locks its own, for as long
    as it takes: no claim finds it before that has committed what became of it, or left nothing behind.
    """
    kept: list[RunId] = []
    for given in _given(ids):
        kept += [_id_of(row) for row in await session.execute(_TO_RENEW, {**given, **_ours(worker)})]
    until = now + timedelta(seconds=lease_s)
    statement = _SET_OURS if alone else _RENEW_NOT_ALONE
    await _set(session, kept, {"claimed_until": until, **_ours(worker)}, statement)
    return set(kept)


async def give_back(session: AsyncSession, ids: Collection[RunId], *, worker: str) -> None:
    """End the claims of runs that were not finished."""
    await _set(session, ids, _ours(worker), _GIVE_BACK)


async def unmark(session: AsyncSession, ids: Collection[RunId], now: datetime) -> None:
    """Of these, nobody is told any more who left them behind; what is being worked on stays as it is."""
    await _set(session, ids, {"b_now": now}, _UNMARK)


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
    return row is not None and row.claimed_by in _ours(worker).values() and row.status == RunStatus.RETRYING.value


async def finish(session: AsyncSession, finished: Sequence[Finish], *, worker: str, now: datetime) -> Finished:
    """Store what became of claimed runs, and let the next of each lane go.

    A success counts even when the claim was lost meanwhile (the effect is there), and whatever another worker's attempt
    made of it, be it dead; not one that an operator gave up, or that a plan began anew. A failure only when it was not.
    """
    if not finished:
        return Finished()
    await _lock(session, [one.run.id for one in finished])
    stored: set[RunId] = set()
    revived: set[RunId] = set()
    for group in _alike(one for one in finished if one.status is RunStatus.SUCCEEDED):
        some, dead = await _store_successes(session, group, now)
        stored |= some
        revived |= dead
    if failures := [one for one in finished if one.status is not RunStatus.SUCCEEDED]:
        stored |= await _store_failures(session, failures, worker, now)
    free = {(f.run.application, f.run.handler, f.run.key) for f in finished if not f.blocking}
    let_go = await _promote(session, free, now)
    return Finished(let_go=let_go, stored=frozenset(stored), revived=frozenset(revived))


async def _promote(session: AsyncSession, free: Collection[Lane], now: datetime) -> int:
    return await _let_go(session, await lanes.heads(session, free), now)


async def _lock(session: AsyncSession, ids: Collection[RunId]) -> None:
    """In key order, so that two workers that finish the same runs cannot lock each other out. On SQLite whoever writes
    is alone."""
    if session.get_bind().dialect.name == "sqlite":
        return
    for given in _given(ids):
        await session.execute(_LOCK, given)


def _alike(finished: Iterable[Finish]) -> Iterator[list[Finish]]:
    """Successes that are stored with the same values: as good as all of them, in one statement then."""
    groups: dict[tuple[int, str], list[Finish]] = {}
    for one in finished:
        groups.setdefault((one.attempts, one.code_version), []).append(one)
    yield from groups.values()


async def _store_successes(
    session: AsyncSession, group: Sequence[Finish], now: datetime
) -> tuple[set[RunId], set[RunId]]:
    """Which are stored, and which of them were dead."""
    plans, values = {one.run.id: one.run.plan for one in group}, _finish_values(group[0], now)
    changed = 0
    for given in _given(plans):
        done = await session.execute(_SET_DONE, {**given, **values})
        changed += done.rowcount  # type: ignore[attr-defined]  # a cursor's result has it
    if changed == len(plans):
        return set(plans), set()
    stored: set[RunId] = set()
    dead: set[RunId] = set()
    for given in _given(plans):
        for row in await session.execute(_AS_THEY_ARE, given):
            if row.status == RunStatus.SUCCEEDED.value and row.updated_at == now:
                stored.add(_id_of(row))
            if row.status == RunStatus.DEAD.value and row.plan == plans[_id_of(row)]:
                dead.add(_id_of(row))
    await _set(session, dead, values, _SET_REVIVED)
    return stored | dead, dead


async def _store_failures(session: AsyncSession, failures: Sequence[Finish], worker: str, now: datetime) -> set[RunId]:
    """Which are stored: those that are still this worker's."""
    ours: set[RunId] = set()
    for given in _given(one.run.id for one in failures):
        ours |= {_id_of(row) for row in await session.execute(_STILL_OURS, {**given, **_ours(worker)})}
    one = and_(
        _RUNS.c.event_id == bindparam("b_event_id"),
        _RUNS.c.application == bindparam("b_application"),
        _RUNS.c.handler == bindparam("b_handler"),
    )
    rows = [
        _finish_values(done, now)
        | _ours(worker)
        | {"b_event_id": done.run.event_id, "b_application": done.run.application, "b_handler": done.run.handler}
        for done in failures
        if done.run.id in ours
    ]
    if rows:
        connection = await session.connection()
        await connection.execute(update(_RUNS).where(one, _STILL_RETRYING, _IS_OURS), rows)
    return ours


def _finish_values(done: Finish, now: datetime) -> dict[str, Any]:
    return {
        "status": done.status.value,
        "blocking": done.blocking,
        "attempts": done.attempts,
        "next_at": done.next_at,
        "code": done.code,
        "reason": (done.reason or "")[:REASON_CHARS] or None,
        "fingerprint": done.fingerprint,
        "code_version": done.code_version,
        "claimed_by": None,
        "claimed_until": done.held_until,
        "updated_at": now,
    }


async def _let_go(session: AsyncSession, ids: Collection[RunId], now: datetime) -> int:
    """Those of these heads that are parked are due now. One that somebody else is just changing is passed over: it is
    let go by them, or found by `lanes.stranded`."""
    free: list[RunId] = []
    for given in _given(ids):
        free += [_id_of(row) for row in await session.execute(_TO_LET_GO, given)]
    await _set(session, free, {"status": RunStatus.RETRYING.value, "next_at": now, "updated_at": now})
    return len(free)


async def release(session: AsyncSession, page: lanes.Page, now: datetime) -> int:
    """Let go what `lanes.stranded` has found; returns how many."""
    return await _let_go(session, page.stranded, now)


async def after_set_back(session: AsyncSession, now: datetime, lease_s: float) -> int:
    """Where the clock was ahead, and was set back, what it put off is due now, and a claim ends within a lease; the
    living renew theirs. At most SET_BACK_AT_ONCE of either; returns how many of the one that had more. What somebody
    else is just changing is passed over: it gets its new time there. What waits for long by a right time goes on."""
    is_retrying, until = lanes.is_status(RunStatus.RETRYING), now + timedelta(seconds=lease_s)
    too_long = now + timedelta(seconds=2 * lease_s)
    found = 0
    for where, values in (
        ((_RUNS.c.next_at > now, _RUNS.c.updated_at > now + SET_BACK), {"next_at": now, "updated_at": now}),
        ((_RUNS.c.claimed_until > too_long,), {"claimed_until": until}),
    ):
        wanted = select(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler).where(is_retrying, *where)
        rows = await session.execute(wanted.limit(SET_BACK_AT_ONCE).with_for_update(skip_locked=True))
        ids = [_id_of(row) for row in rows]
        await _set(session, ids, values)
        found = max(found, len(ids))
    return found


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


async def of_handler(session: AsyncSession, handler: str, events: Collection[tuple[str, str]]) -> dict[RunId, RunRow]:
    """A handler's runs on these (application, event id), by their ids."""
    found: dict[RunId, RunRow] = {}
    for condition in these((application, event_id, handler) for application, event_id in events):
        rows = (await session.execute(select(RunRow).where(condition))).scalars()
        found |= {(row.application, row.event_id, row.handler): row for row in rows}
    return found
