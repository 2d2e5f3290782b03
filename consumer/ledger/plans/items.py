"""The items of plans. Here is decided that each is acted on once: a worker takes an item, and changes its run, in one
transaction; a copy of the event that comes again finds nothing left to take (cases R3, R7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, and_, case, func, insert, literal_column, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import unindexed
from consumer.ledger.engine.chunks import matching, portions
from consumer.ledger.handling import lanes
from consumer.ledger.handling.runs import these
from consumer.ledger.plans.candidates import Pair
from consumer.ledger.plans.tables import RENEWS, Action, ItemStatus, PlanItemRow, PlanRow, PlanStatus
from consumer.ledger.tables import EventRow, OutboxRow, RunRow, RunStatus
from consumer.wire import SEED

_PLANS: Table = PlanRow.__table__
_ITEMS: Table = PlanItemRow.__table__
_EVENTS: Table = EventRow.__table__
_RUNS: Table = RunRow.__table__
_OUTBOX: Table = OutboxRow.__table__

AT_ONCE: Final = 500
_IS_PENDING = _ITEMS.c.status == literal_column(f"'{ItemStatus.PENDING.value}'")
"""The word is in the statement itself, so that the partial index of it serves."""
_IS_LEFT = unindexed(_ITEMS.c.status) == ItemStatus.PENDING.value
"""The same of items that are found by their ids."""
_IS_NEWS = func.coalesce(_RUNS.c.plan, "") != SEED
"""No history that was taken in without effects: for a plan it would have them (case B30)."""
PlannedEvent = tuple[str, str, str]
"""(plan, application, event id)."""
FROM: Final[Mapping[str, tuple[RunStatus, ...]]] = {
    Action.RETRY: (RunStatus.DEAD,),
    Action.HASTEN: (RunStatus.RETRYING,),
    Action.RERUN: (RunStatus.SUCCEEDED, RunStatus.SKIPPED),
}
"""The state a run must be in for the action to be what was planned."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """An item that this transaction acts on: its pair has no run yet."""

    plan: str
    application: str
    event_id: str
    handler: str
    seq: int


@dataclass(frozen=True)
class Progress:
    """How far a plan has come: its items by status, how many of its runs are being worked on now, or could be, and how
    many wait for another attempt."""

    items: Mapping[str, int]
    working: int
    waiting: int


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A derived event: what it is, which event's handling emitted it, when, and when it is to go out."""

    application: str
    event_id: str
    type: str
    key: str
    cause: str
    created_at: datetime
    not_before: datetime

    @property
    def is_timer(self) -> bool:
        """Whether it goes off later."""
        return self.not_before > self.created_at


@dataclass(frozen=True, kw_only=True)
class Working:
    """Runs of a plan that are due: how many nobody has begun, and how many somebody works on."""

    due: int
    at_work: int


async def add(session: AsyncSession, plan: str, pairs: Sequence[tuple[Pair, int, str]]) -> None:
    """Store the items, each with its turn and what was predicted for it. One that only follows needs nobody to take
    it."""
    rows = [
        {
            "plan": plan,
            "application": pair.application,
            "event_id": pair.event_id,
            "handler": pair.handler,
            "seq": pair.seq,
            "turn": turn,
            "key": pair.key,
            "action": pair.action.value,
            "status": (ItemStatus.TAKEN if pair.action is Action.FOLLOW else ItemStatus.PENDING).value,
            "predicted": predicted,
        }
        for pair, turn, predicted in pairs
    ]
    for some in portions(rows, AT_ONCE):
        await session.execute(insert(_ITEMS), list(some))


async def of_plan(session: AsyncSession, plan: str, limit: int | None = None) -> Sequence[tuple[Pair, PlanItemRow]]:
    """The items of a plan, by arrival."""
    event = and_(_EVENTS.c.application == _ITEMS.c.application, _EVENTS.c.id == _ITEMS.c.event_id)
    statement = (
        select(PlanItemRow, select(_EVENTS.c.type).where(event).scalar_subquery())
        .where(_ITEMS.c.plan == plan)
        .order_by(_ITEMS.c.seq, _ITEMS.c.handler)
        .limit(limit)
    )
    return [(_as_pair(row, event_type), row) for row, event_type in await session.execute(statement)]


def _as_pair(row: PlanItemRow, event_type: str) -> Pair:
    return Pair(
        seq=row.seq,
        handler=row.handler,
        application=row.application,
        event_id=row.event_id,
        key=row.key,
        type=event_type,
        action=Action(row.action),
    )


async def next_events(session: AsyncSession, plan: str, limit: int) -> Sequence[EventRow]:
    """The next events of the plan, all of one turn, of which something is still to be taken."""
    waits = and_(_ITEMS.c.plan == plan, _IS_PENDING)
    turn = select(_ITEMS.c.turn).where(waits).order_by(_ITEMS.c.turn).limit(1).scalar_subquery()
    waiting = select(_ITEMS.c.seq).where(waits, _ITEMS.c.turn == turn).distinct().order_by(_ITEMS.c.seq).limit(limit)
    numbers = list(await session.scalars(waiting))
    if not numbers:
        return ()
    statement = select(EventRow).where(_EVENTS.c.seq.in_(numbers)).order_by(_EVENTS.c.seq)
    return (await session.execute(statement)).scalars().all()


async def archived(session: AsyncSession, plan: str) -> Sequence[dict[str, str]]:
    """Items whose event has lost its body to an archive since they were planned."""
    same = and_(_EVENTS.c.application == _ITEMS.c.application, _EVENTS.c.id == _ITEMS.c.event_id)
    wanted = (
        select(_ITEMS.c.application, _ITEMS.c.event_id, _ITEMS.c.handler)
        .join(_EVENTS, same)
        .where(_ITEMS.c.plan == plan, _EVENTS.c.archive.is_not(None))
        .limit(100)
    )
    return [dict(row) for row in (await session.execute(wanted)).mappings()]


async def progress(session: AsyncSession, plan: str, now: datetime) -> Progress:
    """How far it has come."""
    counted = (
        select(_ITEMS.c.status, func.count().label("number")).where(_ITEMS.c.plan == plan).group_by(_ITEMS.c.status)
    )
    items = {row.status: row.number for row in await session.execute(counted)}
    waiting = await session.scalar(select(func.count()).where(_is_open(plan), unindexed(_RUNS.c.next_at) > now))
    found = await working(session, plan, now)
    return Progress(items, found.due + found.at_work, int(waiting or 0))


async def working(session: AsyncSession, plan: str, now: datetime) -> Working:
    """How many of the plan's runs are being worked on now, or could be. What was due when it was written is due, though
    a worker wrote it after this `now`, or by a clock that is ahead."""
    is_claimed = case((_RUNS.c.claimed_until >= now, 1))
    is_due = or_(unindexed(_RUNS.c.next_at) <= now, _RUNS.c.next_at <= _RUNS.c.updated_at)
    counted = select(func.count(), func.count(is_claimed)).where(_is_open(plan), is_due)
    both, at_work = (await session.execute(counted)).one()
    return Working(due=both - at_work, at_work=at_work)


def _is_open(plan: str) -> ColumnElement[bool]:
    """Sought by the plan. As an equation the state would also lead to the index of all that waits, of any plan."""
    word = RunStatus.RETRYING.value
    return and_(_RUNS.c.plan == plan, _RUNS.c.status.between(word, word))


async def is_any_stranded(session: AsyncSession, plan: str) -> bool:
    """Whether a run of the plan is parked behind nothing: what it waited for is done, and a worker lets it go within a
    second or so."""
    word = RunStatus.PARKED.value
    leads = _RUNS.c.event_id == lanes.head_of(_RUNS.c.application, _RUNS.c.handler, _RUNS.c.key)
    parked = select(_RUNS.c.seq).where(_RUNS.c.plan == plan, _RUNS.c.status.between(word, word), leads)
    return (await session.scalar(parked.limit(1))) is not None


async def left(session: AsyncSession, plan: str) -> int:
    """How many items no worker has taken yet."""
    return int(await session.scalar(select(func.count()).where(_ITEMS.c.plan == plan, _IS_PENDING)) or 0)


async def is_any_left(session: AsyncSession, plan: str) -> bool:
    """Whether there are items that no worker has taken yet."""
    return (await session.scalar(select(_ITEMS.c.seq).where(_ITEMS.c.plan == plan, _IS_PENDING).limit(1))) is not None


async def on_way(session: AsyncSession, plan: str, events: Sequence[EventRow]) -> Counter[int]:
    """Of these events, by their places: how many items of each were not taken yet."""
    waiting: Counter[int] = Counter()
    named = ((one.id, plan, one.application) for one in events)
    for some in matching(_ITEMS.c.event_id, (_ITEMS.c.plan, _ITEMS.c.application), named):
        waiting.update(await session.scalars(select(_ITEMS.c.seq).where(some, _IS_LEFT)))
    return waiting


async def newest_derived(session: AsyncSession, plan: str) -> int:
    """The place in the outbox of what was derived last under the plan; 0 when nothing was."""
    return int(await session.scalar(select(func.max(_OUTBOX.c.seq)).where(_OUTBOX.c.plan == plan)) or 0)


async def underway(session: AsyncSession, plan: str, now: datetime, after: int) -> bool:
    """Whether something that was derived under the plan is due (see `working`) and has not arrived yet; of what lies
    after this place in the outbox, so that what has arrived long ago is not looked at again."""
    event = and_(_EVENTS.c.application == _OUTBOX.c.application, _EVENTS.c.id == _OUTBOX.c.event_id)
    arrived = select(_EVENTS.c.seq).where(event).scalar_subquery()  # a probe each: no join with all that ever came
    mine = (_OUTBOX.c.plan == plan, _OUTBOX.c.seq > after)
    is_due = or_(unindexed(_OUTBOX.c.not_before) <= now, _OUTBOX.c.not_before <= _OUTBOX.c.created_at)
    due = select(_OUTBOX.c.seq).where(*mine, is_due, arrived.is_(None))
    return (await session.scalar(due.limit(1))) is not None


async def run_counts(session: AsyncSession, plan: str) -> Mapping[str, Counter[str]]:
    """Handler to how the plan's runs stand: those of its items, and of what was derived from them."""
    counted = select(_RUNS.c.handler, _RUNS.c.status, func.count()).where(_RUNS.c.plan == plan)
    found: dict[str, Counter[str]] = {}
    for handler, status, count in await session.execute(counted.group_by(_RUNS.c.handler, _RUNS.c.status)):
        found.setdefault(handler, Counter())[status] = count
    return found


async def standings(session: AsyncSession, plan: str) -> Sequence[tuple[tuple[str, str, str], str]]:
    """How the runs of the plan's items stand: (application, event id, handler) to status. What moved is not among
    them."""
    run = and_(
        _RUNS.c.application == _ITEMS.c.application,
        _RUNS.c.event_id == _ITEMS.c.event_id,
        _RUNS.c.handler == _ITEMS.c.handler,
    )
    stands = select(_RUNS.c.status).where(run).scalar_subquery()
    statement = select(_ITEMS.c.application, _ITEMS.c.event_id, _ITEMS.c.handler, stands)
    rows = await session.execute(statement.where(_ITEMS.c.plan == plan, _ITEMS.c.status == ItemStatus.TAKEN.value))
    return [((application, event_id, handler), status) for application, event_id, handler, status in rows if status]


async def emitted(session: AsyncSession, plan: str) -> Sequence[Derived]:
    """What was derived under the plan, in its order."""
    columns = [_OUTBOX.c[name] for name in Derived.__dataclass_fields__]
    rows = await session.execute(select(*columns).where(_OUTBOX.c.plan == plan).order_by(_OUTBOX.c.seq))
    return [Derived(**row) for row in rows.mappings()]


async def moved(session: AsyncSession, plan: str, limit: int) -> Sequence[tuple[str, str]]:
    """(event id, handler) of what was not as planned any more when its turn came."""
    statement = select(_ITEMS.c.event_id, _ITEMS.c.handler).where(
        _ITEMS.c.plan == plan, _ITEMS.c.status == ItemStatus.MOVED.value
    )
    return [(event_id, handler) for event_id, handler in await session.execute(statement.limit(limit))]


async def claim_followers(session: AsyncSession, plan: str, now: datetime) -> None:
    """What waits behind the plan's items is done for the plan, too, from now on."""
    mine = and_(_ITEMS.c.plan == plan, _ITEMS.c.action == Action.FOLLOW.value)
    columns = (_ITEMS.c.application, _ITEMS.c.event_id, _ITEMS.c.handler)
    ids = [_id(row) for row in await session.execute(select(*columns).where(mine).order_by(*columns))]
    for some in these(ids):
        parked = update(_RUNS).where(some, lanes.stands(RunStatus.PARKED), _IS_NEWS)
        await session.execute(parked.values(plan=plan, updated_at=now))


# --- a worker's part -------------------------------------------------------------------------------------------


async def take(session: AsyncSession, wanted: Collection[PlannedEvent], now: datetime) -> tuple[Sequence[Taken], int]:
    """Take what is left of these events' items, in this transaction: pairs without a run, for the caller to begin, and
    how many runs that are there already were let go again and are due now. Nothing, when the plan is not being
    applied."""
    found: list[Any] = []
    planned = ((event_id, plan, application) for plan, application, event_id in wanted)
    for some in matching(_ITEMS.c.event_id, (_ITEMS.c.plan, _ITEMS.c.application), planned):
        found += await _taken(session, some, now)
    found.sort(key=lambda row: (row.seq, row.handler))
    ids = [(row.application, row.event_id, row.handler) for row in found]
    there = await _there(session, ids)
    fresh = [row for row in found if row.action == Action.START and _id(row) not in there]
    done = await _let_go(session, [row for row in found if row.action != Action.START], now)
    gone = [row for row in found if row not in fresh and (row.plan, _id(row)) not in done]
    await _mark_moved(session, gone)
    begins = [
        Taken(plan=row.plan, application=row.application, event_id=row.event_id, handler=row.handler, seq=row.seq)
        for row in fresh
    ]
    return begins, len(done)


def _id(row: Any) -> tuple[str, str, str]:
    return (row.application, row.event_id, row.handler)


async def _taken(session: AsyncSession, wanted: ColumnElement[bool], now: datetime) -> Sequence[Any]:
    plan = select(_PLANS.c.status).where(_PLANS.c.id == _ITEMS.c.plan).scalar_subquery()
    is_applied = plan == PlanStatus.APPLYING.value
    statement = (
        update(_ITEMS)
        .where(
            wanted,
            _IS_LEFT,
            is_applied,
        )
        .values(status=ItemStatus.TAKEN.value, taken_at=now)
        .returning(*[_ITEMS.c[name] for name in ("plan", "application", "event_id", "handler", "seq", "key", "action")])
    )
    return (await session.execute(statement)).all()


async def _there(session: AsyncSession, ids: Collection[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    found: set[tuple[str, str, str]] = set()
    columns = (_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler)
    for some in these(ids):
        rows = await session.execute(select(*columns).where(some))
        found |= {(application, event_id, handler) for application, event_id, handler in rows}
    return found


async def _let_go(session: AsyncSession, rows: Sequence[Any], now: datetime) -> set[tuple[str, tuple[str, str, str]]]:
    """Set runs due again, those that are as planned; says which."""
    done: set[tuple[str, tuple[str, str, str]]] = set()
    groups: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        groups.setdefault((row.plan, row.action), []).append(row)
    renewing = await _renewing(session, {plan for plan, _ in groups})
    for (plan, action), some in sorted(groups.items()):
        changed = await _set_due(session, plan, Action(action), some, now, renews_keys=plan in renewing)
        done |= {(plan, one) for one in changed}
    return done


async def _renewing(session: AsyncSession, plans: Collection[str]) -> set[str]:
    wanted = select(_PLANS.c.id).where(_PLANS.c.id.in_(sorted(plans)), _PLANS.c.renews_keys)
    return set(await session.scalars(wanted)) if plans else set()


async def _set_due(
    session: AsyncSession, plan: str, action: Action, rows: Sequence[Any], now: datetime, *, renews_keys: bool
) -> set[tuple[str, str, str]]:
    values: dict[str, Any] = {"next_at": now, "plan": plan, "updated_at": now}
    if action is not Action.HASTEN:
        values |= {"status": RunStatus.RETRYING.value, "blocking": True, "attempts": 0, "claimed_by": None,
                   "claimed_until": None}  # fmt: skip
    if renews_keys and action in RENEWS:
        values["key_plan"] = plan
    as_planned = (
        lanes.stands(*FROM[action]),
        or_(_RUNS.c.claimed_until.is_(None), _RUNS.c.claimed_until < now),
        _IS_NEWS,
    )
    changed: set[tuple[str, str, str]] = set()
    for some in these(map(_id, rows)):
        statement = update(_RUNS).where(some, *as_planned).values(values)
        done = await session.execute(statement.returning(_RUNS.c.application, _RUNS.c.event_id, _RUNS.c.handler))
        changed |= {(application, event_id, handler) for application, event_id, handler in done}
    return changed


async def _mark_moved(session: AsyncSession, rows: Sequence[Any]) -> None:
    ids = ((row.event_id, row.plan, row.application, row.handler) for row in rows)
    for some in matching(_ITEMS.c.event_id, (_ITEMS.c.plan, _ITEMS.c.application, _ITEMS.c.handler), ids):
        await session.execute(update(_ITEMS).where(some).values(status=ItemStatus.MOVED.value))
