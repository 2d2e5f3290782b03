"""One subscription's row: a fact applied under its lock, its customer found, and what follows from the change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, select, update

from consumer.plugin import Context, Event
from handlers.access import facts
from handlers.access.decisions import Cause, Kind, recompute
from handlers.access.policy import Policy
from handlers.access.subscription import ENDED, FIELDS, Subscription, to_subscription
from handlers.access.tables import FINDINGS, LINKS, SUBSCRIPTIONS, AccessSubscription
from handlers.findings import close_finding, open_finding, seen

SUBSCRIPTION_DUE = "access.subscription_due"
BATCH, OTHERS_MAX = 500, 20
_DECIDING = ("customer", "price_id", "product_id", "status", "provisional", "past_due_since", "grace_from",
             "end_reason", "settle_until", "unannounced", "cancel_at_period_end",
             "merchant_cancel_requested")  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A subscription before and after a fact."""

    before: Subscription
    after: Subscription

    def touched(self, *names: str) -> bool:
        """Whether one of these fields is different."""
        return any(getattr(self.before, name) != getattr(self.after, name) for name in names)


async def apply(
    ctx: Context, event: Event, subscription_id: str, policy: Policy, fact: Callable[[Subscription], Subscription]
) -> Change:
    """Apply a fact to the subscription's row, find its customer, and decide anew if it matters.

    The row is locked before it is read, so that two workers with facts about one subscription take turns.
    """
    change = await _written(ctx, subscription_id, fact)
    if change.before != change.after:
        _note(ctx, subscription_id, change)
    await _queues(ctx, event, subscription_id, policy, change)
    if facts.asks_session(change.after, change.before):
        ctx.request_read("session", str(change.after.session_id))  # once; again: see `ask_whose`
    if change.touched("lease_until") and change.after.lease_until is not None:
        wake(ctx, subscription_id, "lease", change.after.lease_until)
    if change.touched(*_DECIDING):
        await _decide(ctx, event, subscription_id, policy, change)
    return change


async def apply_where(
    ctx: Context,
    event: Event,
    policy: Policy,
    conditions: Sequence[ColumnElement[bool]],
    fact: Callable[[Subscription], Subscription],
) -> None:
    """Apply a fact to each subscription that one of these conditions finds; bounded."""
    found: set[str] = set()
    for condition in conditions:  # each by its index; an OR of them is answered by walking along the key
        wanted = select(SUBSCRIPTIONS.c.subscription_id).where(
            SUBSCRIPTIONS.c.application == ctx.application, condition
        )
        found |= set((await ctx.session.execute(wanted.limit(BATCH))).scalars())
    for id_ in sorted(found)[:BATCH]:
        await apply(ctx, event, id_, policy, fact)


def ask_whose(ctx: Context, sub: Subscription) -> None:
    """Have its checkout session read again, while nobody knows whose it is (case A36)."""
    if facts.asks_session(sub):
        ctx.request_read("session", str(sub.session_id))


async def _written(ctx: Context, subscription_id: str, fact: Callable[[Subscription], Subscription]) -> Change:
    key: dict[str, Any] = {"application": ctx.application, "subscription_id": subscription_id}
    found = await ctx.locked(AccessSubscription, **key)
    if found is None:
        fresh = await _linked(ctx, fact(Subscription()))
        if await ctx.insert_new(AccessSubscription(**key, **asdict(fresh))):
            return Change(Subscription(), fresh)
        found = await ctx.locked(AccessSubscription, **key)
        if found is None:
            raise RuntimeError("a row that stood in the way is gone; rows of this table are never deleted")
    before = to_subscription(found)
    after = await _linked(ctx, fact(before), before)
    changed = {name: getattr(after, name) for name in FIELDS if getattr(after, name) != getattr(before, name)}
    if changed:
        one = (SUBSCRIPTIONS.c.application == ctx.application) & (SUBSCRIPTIONS.c.subscription_id == subscription_id)
        await ctx.session.execute(update(SUBSCRIPTIONS).where(one).values(changed))
    return Change(before, after)


async def _linked(ctx: Context, sub: Subscription, before: Subscription | None = None) -> Subscription:
    """Look for the merchant's registration when the session or the order has just become known, and as long as
    nobody knows whose it is: a registration in the very same moment may not have been visible (case A37)."""
    known = before or Subscription()
    if (sub.session_id, sub.order_id) == (known.session_id, known.order_id) and sub.customer is not None:
        return sub
    by = [("checkout", LINKS.c.session_id == sub.session_id)] if sub.session_id else []
    by += [("order", LINKS.c.order_id == sub.order_id)] if sub.order_id else []
    for source, condition in by:
        wanted = select(LINKS.c.customer, LINKS.c.registered_at).where(
            LINKS.c.application == ctx.application, condition
        )
        link = (await ctx.session.execute(wanted.order_by(LINKS.c.registered_at.desc()).limit(1))).first()
        if link is not None:
            return facts.attached(sub, link.customer, source, link.registered_at)
    return sub


async def unidentified(ctx: Context, event: Event) -> None:
    """The service says something of a subscription, and not of which: a field has another name, or another place. One
    finding for each type, since all events of it are alike; who settled it is told of the next one."""
    ctx.log.warning("subscription_unidentified", type=event.type, event_id=event.id)
    detail = {"event_id": event.id, "cure": "CONSUMER_LOCATE_SUBSCRIPTION; what was missed: consumer reconcile"}
    at = event.received_at
    await open_finding(ctx, FINDINGS, "unidentified_subscription", event.type, at, detail, anew=True)


async def _queues(ctx: Context, event: Event, subscription_id: str, policy: Policy, change: Change) -> None:
    """The queues an operator sees: an unresolved subscriber, an unmapped price, money after the end, and one that the
    service says it does not have."""
    before, after, at = change.before, change.after, event.received_at
    is_further = before.charged_after_end and _is_charged_later(before, after)
    if is_further or (after.charged_after_end and not before.charged_after_end):
        detail = {"renewed_at": _plain(after.renewed_at), "ended_at": _plain(after.ended_at)}
        await open_finding(ctx, FINDINGS, "charged_after_end", subscription_id, at, detail, anew=is_further)
    if after.is_live and after.customer is None and (not before.is_live or before.customer is not None):
        ctx.log.warning("unresolved_subscriber", subscription_id=subscription_id)
        detail = {"session_id": after.session_id, "order_id": after.order_id}
        await open_finding(ctx, FINDINGS, "unresolved_subscriber", subscription_id, at, detail)
        data = {"subscription_id": subscription_id, "price_id": after.price_id, **detail}
        ctx.emit("access.unresolved", f"subscription:{subscription_id}", data, once="unresolved", is_history=False)
    elif before.status is not None and before.customer is None and after.customer is not None:
        await close_finding(ctx, FINDINGS, "unresolved_subscriber", subscription_id, at)
    is_over = after.status == ENDED and before.status != ENDED  # final without a read: nothing is left to look after
    if before.is_unreadable and (is_over or not after.is_unreadable):
        await close_finding(ctx, FINDINGS, "unreadable_subscription", subscription_id, at)
    await _mapping(ctx, event, subscription_id, policy, change)


def _is_charged_later(before: Subscription, after: Subscription) -> bool:
    """Whether a charge was heard of that is newer than the last one, and after the end: what an operator closed was
    about the one before. Pure."""
    if after.renewed_at is None or after.renewed_at == before.renewed_at:
        return False
    return after.ended_at is None or after.renewed_at >= after.ended_at


async def _mapping(ctx: Context, event: Event, subscription_id: str, policy: Policy, change: Change) -> None:
    """A live subscription whose price grants nothing we know of waits, and is looked at again (case A32)."""
    after, at = change.after, event.received_at
    if policy.entitlements is None:
        return
    is_mapped = policy.grants_of(after.price_id, after.product_id) is not None
    is_new = not change.before.is_live or change.touched("price_id", "product_id")
    if not is_mapped and after.is_live:
        if is_new or not await seen(ctx, FINDINGS, "unmapped_price", [subscription_id]):
            await show_unmapped(ctx, subscription_id, after, at)
            wake(ctx, subscription_id, "unmapped", at + policy.unmapped_retry, policy.unmapped_retry.total_seconds())
    elif is_mapped and change.before.is_live and change.touched("price_id", "product_id"):
        await close_finding(ctx, FINDINGS, "unmapped_price", subscription_id, at)


async def show_unmapped(ctx: Context, subscription_id: str, sub: Subscription, at: datetime) -> None:
    """Somebody pays for what gives nothing, or no longer does: an operator is told."""
    ctx.log.warning("unmapped_price", subscription_id=subscription_id, price_id=sub.price_id)
    detail = {"price_id": sub.price_id, "product_id": sub.product_id}
    await open_finding(ctx, FINDINGS, "unmapped_price", subscription_id, at, detail)


async def _decide(ctx: Context, event: Event, subscription_id: str, policy: Policy, change: Change) -> None:
    kind = Kind.READ if event.type in ("subscription.observed", "session.observed") else Kind.EVENT
    cause = Cause(event_id=event.id, at=event.received_at, kind=kind)
    customers = {customer for customer in (change.before.customer, change.after.customer) if customer is not None}
    for customer in sorted(customers):
        await recompute(ctx, customer, policy, cause)
    joined = change.after.is_live and change.after.customer is not None
    if joined and not (change.before.is_live and change.before.customer == change.after.customer):
        await _reread_others(ctx, subscription_id, str(change.after.customer))


async def _reread_others(ctx: Context, subscription_id: str, customer: str) -> None:
    """A new subscription may have ended another one without an event: read the customer's others (case A26)."""
    others = (
        select(SUBSCRIPTIONS.c.subscription_id)
        .where(
            SUBSCRIPTIONS.c.application == ctx.application,
            SUBSCRIPTIONS.c.customer == customer,
            SUBSCRIPTIONS.c.status.in_(("ACTIVE", "PAST_DUE")),
            SUBSCRIPTIONS.c.subscription_id != subscription_id,
        )
        .limit(OTHERS_MAX)
    )
    for other in (await ctx.session.execute(others)).scalars():
        ctx.request_read("subscription", other)


def wake(
    ctx: Context, subscription_id: str, why: str, due: datetime, wait_s: float = 0, *, heard_at: datetime | None = None
) -> None:
    """A timer for one subscription: comes back as `access.subscription_due` at that time. One that something heard sets
    off is the same timer whenever it is told again (case G9)."""
    data = {"why": why, "due": due.isoformat(), "wait_s": wait_s, "heard_at": _plain(heard_at)}
    key = f"subscription:{subscription_id}"
    once = f"{why}:{(heard_at or due).isoformat()}"
    ctx.emit(SUBSCRIPTION_DUE, key, data, not_before=due, once=once, is_history=False)


async def wake_unseen(ctx: Context, subscriptions: Mapping[str, Subscription], policy: Policy, at: datetime) -> None:
    """Look at those that live and whose price is mapped to nothing any more, and that no finding tells of: the mapping
    was changed meanwhile (case A32)."""
    live = {id_: sub for id_, sub in subscriptions.items() if sub.is_live}
    unmapped = {id_ for id_, sub in live.items() if policy.grants_of(sub.price_id, sub.product_id) is None}
    if unmapped:
        for id_ in sorted(unmapped - await seen(ctx, FINDINGS, "unmapped_price", unmapped)):
            wake(ctx, id_, "unmapped", at)


async def wake_waiting(ctx: Context, kind: str, why: str, at: datetime, limit: int) -> None:
    """Look at once at those that an open finding of this kind tells of: whether their price has a mapping by now (case
    A32), or their session says whose they are (case A36)."""
    waiting = (
        select(FINDINGS.c.subject)
        .where(
            FINDINGS.c.application == ctx.application,
            FINDINGS.c.kind == kind,
            FINDINGS.c.closed_at.is_(None),
        )
        .limit(limit)
    )
    for id_ in (await ctx.session.execute(waiting)).scalars():
        wake(ctx, id_, why, at)


def _note(ctx: Context, subscription_id: str, change: Change) -> None:
    names = [name for name in FIELDS if change.touched(name)]
    before, after = asdict(change.before), asdict(change.after)
    ctx.note(
        f"subscription:{subscription_id}",
        "subscription.changed",
        {name: _plain(before[name]) for name in names},
        {name: _plain(after[name]) for name in names},
    )


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
