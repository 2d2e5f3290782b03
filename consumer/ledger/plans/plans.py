"""The plans: stored once, never changed but for where they stand. At most one is being applied (case R15)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy import Table, func, insert, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger import audit, leases
from consumer.ledger.plans.tables import ItemStatus, PlanItemRow, PlanRow, PlanStatus
from consumer.ledger.tables import REASON_CHARS
from consumer.ledger.trail.chain import sealed
from consumer.ledger.trail.sealing import frozen
from consumer.wire import REPLAY

_PLANS: Table = PlanRow.__table__
# The word is in the statement itself, so that the index of it serves.
_IS_APPLYING = _PLANS.c.status == literal_column(f"'{PlanStatus.APPLYING.value}'")
_ITEMS: Table = PlanItemRow.__table__


TURNS: Final = 0x7265706C
"""The number of the lock of whoever begins a plan, or takes bodies out."""
ROLE: Final = "replay"
"""The lease of whoever applies a plan: one process at a time."""


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A plan as it is to be stored. `digest` is over its items and what was predicted."""

    by: str
    reason: str | None
    filters: Mapping[str, Any]
    forced: bool
    renews_keys: bool
    items: int
    predicted: Mapping[str, Any]
    digest: str


@dataclass(frozen=True)
class HalfApplied:
    """A plan that was begun and not done, and that nobody goes on with."""

    plan: str
    renews_keys: bool


def new_id() -> str:
    """An id that no other plan has."""
    return REPLAY + secrets.token_hex(8)


async def create(session: AsyncSession, plan_id: str, decided: Decided, now: datetime) -> None:
    """Store a plan, and note it in the audit trail. Its items are added in the same transaction."""
    number = (await session.execute(select(func.coalesce(func.max(_PLANS.c.number), 0)))).scalar_one() + 1
    values = {
        "id": plan_id,
        "number": number,
        "status": PlanStatus.PLANNED.value,
        "created_at": now,
        "created_by": decided.by,
        "reason": decided.reason,
        "filters": orjson.dumps(dict(decided.filters)),
        "forced": decided.forced,
        "renews_keys": decided.renews_keys,
        "items": decided.items,
        "predicted": orjson.dumps(dict(decided.predicted)),
        "digest": decided.digest,
    }
    await session.execute(insert(_PLANS), values)
    after = {
        "items": decided.items,
        "digest": decided.digest,
        "forced": decided.forced,
        "sealed": sealed(frozen(values)),
    }
    _audit(session, plan_id, "replay.planned", decided.by, decided.reason, now, after)


async def get(session: AsyncSession, plan_id: str) -> PlanRow | None:
    """The plan, or None."""
    return (await session.execute(select(PlanRow).where(_PLANS.c.id == plan_id))).scalars().first()


async def newest(session: AsyncSession, limit: int) -> Sequence[PlanRow]:
    """The newest plans, newest first."""
    return (await session.execute(select(PlanRow).order_by(_PLANS.c.number.desc()).limit(limit))).scalars().all()


async def applying(session: AsyncSession) -> PlanRow | None:
    """The plan that is being applied, or was when its `apply` was killed."""
    return (await session.execute(select(PlanRow).where(_IS_APPLYING))).scalars().first()


async def half_applied(session: AsyncSession, now: datetime) -> HalfApplied | None:
    """The plan that was begun and is left: what it still holds is not done. None while a process has the lease."""
    begun = (await session.execute(select(_PLANS.c.id, _PLANS.c.renews_keys).where(_IS_APPLYING))).first()
    if begun is None:
        return None
    lease = await leases.current(session, ROLE)
    is_applied = lease is not None and leases.is_held(lease.until, now)
    return None if is_applied else HalfApplied(*begun)


async def take_turns(session: AsyncSession) -> None:
    """Who begins a plan and who takes bodies out, which it may need, wait for each other until their transactions are
    over. SQLite has one writer anyway."""
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(select(func.pg_advisory_xact_lock(TURNS)))


async def begin(session: AsyncSession, plan_id: str, *, by: str, reason: str, now: datetime) -> bool:
    """From planned to being applied; False when it is not planned (any more). A unique index lets only one be so: whose
    turn it is (`take_turns`) looks before whether another is."""
    done = await _move(
        session, plan_id, (PlanStatus.PLANNED,), status=PlanStatus.APPLYING.value, began_at=now, began_by=by,
        reason=reason[:REASON_CHARS],
    )  # fmt: skip
    if done:
        _audit(session, plan_id, "replay.applied", by, reason, now, {"status": PlanStatus.APPLYING.value})
    return done


async def go_on(session: AsyncSession, plan_id: str, *, by: str, reason: str, now: datetime) -> None:
    """Somebody goes on with what was begun and not done: who, and why, is in the audit trail."""
    _audit(session, plan_id, "replay.resumed", by, reason, now, {"status": PlanStatus.APPLYING.value})


async def complete(session: AsyncSession, plan_id: str, *, by: str, now: datetime, result: Mapping[str, Any]) -> bool:
    """From being applied to applied; `result` goes into the audit trail."""
    done = await _move(
        session, plan_id, (PlanStatus.APPLYING,), status=PlanStatus.APPLIED.value, ended_at=now, ended_by=by
    )
    if done:
        _audit(session, plan_id, "replay.completed", by, None, now, result)
    return done


async def cancel(session: AsyncSession, plan_id: str, *, by: str, reason: str, now: datetime) -> int | None:
    """Nothing more of it is acted on. How many items were still open; None when it was over already."""
    open_ = (PlanStatus.PLANNED, PlanStatus.APPLYING)
    if not await _move(
        session, plan_id, open_, status=PlanStatus.CANCELLED.value, ended_at=now, ended_by=by
    ):  # fmt: skip
        return None
    left = await session.execute(
        update(_ITEMS)
        .where(_ITEMS.c.plan == plan_id, _ITEMS.c.status == literal_column(f"'{ItemStatus.PENDING.value}'"))
        .values(status=ItemStatus.CANCELLED.value)
    )
    count = int(left.rowcount)  # type: ignore[attr-defined]  # a cursor's result has it
    _audit(session, plan_id, "replay.cancelled", by, reason, now, {"items_left": count})
    return count


async def _move(session: AsyncSession, plan_id: str, before: Sequence[PlanStatus], **values: object) -> bool:
    stands = _PLANS.c.status.in_([one.value for one in before])
    statement = update(_PLANS).where(_PLANS.c.id == plan_id, stands).values(**values).returning(_PLANS.c.id)
    return (await session.execute(statement)).first() is not None


def _audit(
    session: AsyncSession, plan_id: str, action: str, by: str, reason: str | None, now: datetime,
    after: Mapping[str, Any],
) -> None:  # fmt: skip
    audit.note(
        session,
        at=now,
        application="",
        actor=by,
        action=action,
        subject=f"plan:{plan_id}",
        after=orjson.dumps(dict(after)).decode(),
        reason=reason,
    )
