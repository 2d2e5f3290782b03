"""Deciding about one customer: gather, call the pure `decide`, write and announce what changed. One at a time per
customer, by the lock on the customer's row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import and_, case, func, select, text, update

from consumer.plugin import Context, derived_id, insert_into
from handlers.access.policy import Policy
from handlers.access.rules import SUCCESSOR, Decision, OperatorSource, decide, goes_on_until, subject_of
from handlers.access.subscription import ENDED, Subscription, to_subscription
from handlers.access.tables import (
    BRAKES,
    CUSTOMERS,
    ENTITLEMENTS,
    FINDINGS,
    NOBODYS,
    SOURCES,
    SUBSCRIPTIONS,
    AccessBrake,
)
from handlers.findings import close_finding, open_finding

GRANTED, REVOKED, CUSTOMER_DUE = "access.granted", "access.revoked", "access.customer_due"
ENDED_MAX, NOBODYS_MAX = 200, 200
SOON = timedelta(seconds=5)


class Kind(StrEnum):
    """What made us decide. The brake is for reads and timers: an event or an operator means what it says."""

    EVENT = "event"
    READ = "read"
    TIMER = "timer"
    OPERATOR = "operator"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What made us decide, and when; whether what ends may wait for a successor (`waits`)."""

    event_id: str
    at: datetime
    kind: Kind
    waits: bool = True


async def recompute(ctx: Context, customer: str, policy: Policy, cause: Cause) -> Mapping[str, Subscription]:
    """Decide anew for every entitlement of the customer, as of the cause's time (never earlier than last time). Returns
    the customer's subscriptions."""
    now = await _lock(ctx, customer, cause.at)
    subscriptions = await _subscriptions(ctx, customer)
    grants, holds = await _operator_sources(ctx, customer)
    standing = await _standing(ctx, customer)
    allowed = {name for name, row in standing.items() if row["allowed"] and not _was_revoked(ctx, customer, row, cause)}
    decisions = decide(subscriptions, grants, holds, policy, now, known=standing, standing=allowed)
    decisions |= await _going_on(ctx, customer, decisions, standing, subscriptions, policy, cause, now)
    unannounced = {id_ for id_, sub in subscriptions.items() if sub.unannounced}
    was_braked = False
    for entitlement, decision in decisions.items():
        known = standing.get(entitlement)
        revokes = known is not None and known["allowed"] and not decision.allowed
        rests = known is not None and not unannounced.isdisjoint(map(subject_of, known["reasons"]))
        if known and ctx.emitted_then is not None and not _was_revoked(ctx, customer, known, cause):
            rests = bool(unannounced)  # in a rebuild: it was stopped, by the rule of then
        brakes = rests and cause.kind in (Kind.READ, Kind.TIMER)
        if known and revokes and brakes and (known["braked"] or await _braked(ctx, customer, entitlement, policy, now)):
            continue
        was_braked = was_braked or bool(known and known["braked"])
        await _settle(ctx, customer, entitlement, decision, known, cause, now)
    if was_braked:
        await _unbraked(ctx, now)
    checks = [decision.next_check for decision in decisions.values() if decision.next_check is not None]
    if checks:
        due = min(checks)
        # One that has passed while nobody worked waits for what lies beside it in the log, and for the reads asked for.
        not_before = max(due, ctx.now + policy.settle)
        data = {"due": due.isoformat()}
        ctx.emit(
            CUSTOMER_DUE, f"customer:{customer}", data, not_before=not_before, once=due.isoformat(), is_history=False
        )
    return subscriptions


async def _going_on(
    ctx: Context,
    customer: str,
    decisions: Mapping[str, Decision],
    standing: Mapping[str, Mapping[str, Any]],
    subscriptions: Mapping[str, Subscription],
    policy: Policy,
    cause: Cause,
    now: datetime,
) -> dict[str, Decision]:
    """What would end and goes on, as somebody was heard of whose first read may say that he is the successor. That is
    looked at again after `settle`, then ever later. Where there is nobody, an event of our own ends it at once: of what
    was asked about others a rebuild finds the answer that was given."""
    is_told = cause.kind in (Kind.EVENT, Kind.OPERATOR)
    found: dict[str, datetime] = {}
    for name, decision in decisions.items() if cause.waits else ():
        row = standing.get(name)
        if row is not None and row["allowed"] and not row["braked"] and not _was_revoked(ctx, customer, row, cause):
            until = goes_on_until(decision, row, subscriptions, policy, now, is_told=is_told)
            found |= {} if until is None else {name: until}
    if not found:
        return {}
    waited = now - (min(found.values()) - policy.resubscribe)
    next_check = now + max(policy.settle, SOON, waited / 4) if await _is_heard_of(ctx, found, policy, now) else None
    if next_check is None:
        data = {"due": now.isoformat(), "alone": True}
        ctx.emit(CUSTOMER_DUE, f"customer:{customer}", data, once=f"alone:{cause.event_id}", is_history=False)
    return {
        name: Decision(
            allowed=True,
            until=until,
            reasons=(SUCCESSOR, *(one for one in standing[name]["reasons"] if subject_of(one) in subscriptions)),
            next_check=next_check and min(until, next_check),
        )
        for name, until in found.items()
    }


async def _is_heard_of(ctx: Context, ending: Mapping[str, datetime], policy: Policy, now: datetime) -> bool:
    """Whether there is a subscription that was heard of before these end, that no read has shown and nobody's it is
    known to be. Who comes later prolongs nothing."""
    heard_by = min(ending.values()) - policy.resubscribe + policy.settle
    wanted = select(SUBSCRIPTIONS.c.price_id, SUBSCRIPTIONS.c.product_id).where(
        SUBSCRIPTIONS.c.application == ctx.application,
        text(NOBODYS),
        SUBSCRIPTIONS.c.hinted_at > now - policy.resubscribe,
        SUBSCRIPTIONS.c.hinted_at <= heard_by,
        SUBSCRIPTIONS.c.unreadable_version.is_(None),
        func.coalesce(SUBSCRIPTIONS.c.status, "") != ENDED,
    )
    rows = await ctx.session.execute(wanted.order_by(SUBSCRIPTIONS.c.hinted_at.desc()).limit(NOBODYS_MAX))
    granted = [policy.grants_of(price, product) for price, product in rows]
    return any(names is None or not ending.keys().isdisjoint(names) for names in granted)


def _was_revoked(ctx: Context, customer: str, standing: Mapping[str, Any], cause: Cause) -> bool:
    """In a rebuild: whether this run revoked it. Then that is a fact, though by the rules of now it would wait."""
    if ctx.emitted_then is None:
        return False
    once = _once(standing["entitlement"], standing["version"] + 1, cause)
    return derived_id(ctx.application, REVOKED, f"customer:{customer}", once) in ctx.emitted_then


async def _lock(ctx: Context, customer: str, at: datetime) -> datetime:
    """Lock the customer and move its time on; an event from the archive decides as of the latest time seen."""
    insert = insert_into(CUSTOMERS, ctx.session.get_bind().dialect.name)
    later = case((insert.excluded.as_of > CUSTOMERS.c.as_of, insert.excluded.as_of), else_=CUSTOMERS.c.as_of)
    statement = insert.values(application=ctx.application, customer=customer, as_of=at).on_conflict_do_update(
        index_elements=["application", "customer"], set_={"as_of": later}
    )
    found: datetime = (await ctx.session.execute(statement.returning(CUSTOMERS.c.as_of))).scalar_one()
    return found


async def _subscriptions(ctx: Context, customer: str) -> dict[str, Subscription]:
    """The customer's subscriptions: each that may give something, and of those that ended the last ones."""
    has_ended = case((SUBSCRIPTIONS.c.status == ENDED, 1), else_=0)
    number = func.row_number().over(partition_by=has_ended, order_by=SUBSCRIPTIONS.c.ended_at.desc())
    his = (SUBSCRIPTIONS.c.application == ctx.application) & (SUBSCRIPTIONS.c.customer == customer)
    found = select(SUBSCRIPTIONS, has_ended.label("has_ended"), number.label("number")).where(his).subquery()
    wanted = select(found).where((found.c.has_ended == 0) | (found.c.number <= ENDED_MAX))
    rows = (await ctx.session.execute(wanted)).mappings()
    return {row["subscription_id"]: to_subscription(row) for row in rows}


async def _operator_sources(ctx: Context, customer: str) -> tuple[list[OperatorSource], list[OperatorSource]]:
    wanted = select(SOURCES).where(
        SOURCES.c.application == ctx.application, SOURCES.c.customer == customer, SOURCES.c.ended_at.is_(None)
    )
    grants: list[OperatorSource] = []
    holds: list[OperatorSource] = []
    rows = (await ctx.session.execute(wanted)).mappings().all()
    # What is derived again names its reasons in the same order. Sorted in SQL a planner walks through all sources.
    for row in sorted(rows, key=lambda row: str(row["id"])):
        source = OperatorSource(id=row["id"], entitlement=row["entitlement"], until=row["until"])
        (holds if row["kind"] == "hold" else grants).append(source)
    return grants, holds


async def _standing(ctx: Context, customer: str) -> dict[str, Mapping[str, Any]]:
    wanted = select(ENTITLEMENTS).where(
        ENTITLEMENTS.c.application == ctx.application, ENTITLEMENTS.c.customer == customer
    )
    rows = (await ctx.session.execute(wanted)).mappings()
    return {row["entitlement"]: dict(row) for row in rows}


async def _settle(
    ctx: Context,
    customer: str,
    entitlement: str,
    decision: Decision,
    standing: Mapping[str, Any] | None,
    cause: Cause,
    now: datetime,
) -> None:
    """Write one decision; announce it only if it is another than the standing one."""
    was = bool(standing and standing["allowed"])
    version = (standing["version"] if standing else 0) + (decision.allowed != was)
    values = {
        "allowed": decision.allowed,
        "until": decision.until,
        "reasons": list(decision.reasons),
        "version": version,
        "braked": False,
    }
    if decision.allowed == was and standing is not None and all(standing[name] == values[name] for name in values):
        return
    await _write(ctx, customer, entitlement, values, now, changed=decision.allowed != was)
    if decision.allowed != was:
        _announce(ctx, customer, entitlement, decision, version, cause)


async def _write(
    ctx: Context, customer: str, entitlement: str, values: dict[str, Any], now: datetime, *, changed: bool
) -> None:
    insert = insert_into(ENTITLEMENTS, ctx.session.get_bind().dialect.name)
    new = {**values, "changed_at": now} if changed else values
    await ctx.session.execute(
        insert.values(
            application=ctx.application, customer=customer, entitlement=entitlement, **values, changed_at=now
        ).on_conflict_do_update(index_elements=["application", "customer", "entitlement"], set_=new)
    )


def _announce(ctx: Context, customer: str, entitlement: str, decision: Decision, version: int, cause: Cause) -> None:
    data = {
        "customer": customer,
        "entitlement": entitlement,
        "allowed": decision.allowed,
        "until": decision.until.isoformat() if decision.until else None,
        "reasons": list(decision.reasons),
        "version": version,
        "before": {"allowed": not decision.allowed},
    }
    once = _once(entitlement, version, cause)
    # Also where a seed brought what changes it: what was told before is another decision, and nothing else corrects it.
    ctx.emit(GRANTED if decision.allowed else REVOKED, f"customer:{customer}", data, once=once, is_history=False)
    ctx.note(
        f"customer:{customer}",
        "access.granted" if decision.allowed else "access.revoked",
        {"entitlement": entitlement, "allowed": not decision.allowed},
        {
            "entitlement": entitlement,
            "allowed": decision.allowed,
            "reasons": list(decision.reasons),
            "version": version,
        },
    )


def _once(entitlement: str, version: int, cause: Cause) -> str:
    """The cause is part of the id: a rebuilt projection that counts differently can never swallow a real change."""
    return f"{entitlement}:{version}:{cause.event_id}"


async def _braked(ctx: Context, customer: str, entitlement: str, policy: Policy, now: datetime) -> bool:
    """Whether this revocation must wait for an operator: too many in one window that rest on reads alone (case B31)."""
    if policy.brake is None:
        return False
    await ctx.insert_new(AccessBrake(application=ctx.application, since=now, revoked=0))
    row = await ctx.locked(AccessBrake, application=ctx.application)
    count = row["revoked"] if row is not None and now - row["since"] < policy.brake.window else 0
    live = await _live(ctx)
    if count < max(policy.brake.minimum, int(policy.brake.share * live)):
        values = {"revoked": count + 1} if count else {"revoked": 1, "since": now}
        await ctx.session.execute(update(BRAKES).where(BRAKES.c.application == ctx.application).values(values))
        return False
    one = and_(
        ENTITLEMENTS.c.application == ctx.application,
        ENTITLEMENTS.c.customer == customer,
        ENTITLEMENTS.c.entitlement == entitlement,
    )
    await ctx.session.execute(update(ENTITLEMENTS).where(one).values(braked=True))
    ctx.log.error("revocations_stopped", revoked=count, live=live)
    await open_finding(ctx, FINDINGS, "brake", ctx.application, now, {"revoked": count, "live": live}, anew=True)
    return True


async def _unbraked(ctx: Context, now: datetime) -> None:
    """Close the brake's finding with the last revocation that waited; one at a time, by the brake's lock."""
    await ctx.locked(AccessBrake, application=ctx.application)
    if not await braked_customers(ctx, 1, after=""):
        await close_finding(ctx, FINDINGS, "brake", ctx.application, now)


async def _live(ctx: Context) -> int:
    wanted = select(func.count()).where(ENTITLEMENTS.c.application == ctx.application, ENTITLEMENTS.c.allowed)
    return int((await ctx.session.execute(wanted)).scalar_one())


async def braked_customers(ctx: Context, limit: int, *, after: str) -> Sequence[str]:
    """Customers with a revocation that waits for an operator, in order, from one on."""
    wanted = select(ENTITLEMENTS.c.customer).where(
        ENTITLEMENTS.c.application == ctx.application, ENTITLEMENTS.c.braked, ENTITLEMENTS.c.customer > after
    )
    return (await ctx.session.execute(wanted.distinct().order_by(ENTITLEMENTS.c.customer).limit(limit))).scalars().all()
