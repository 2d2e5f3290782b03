"""Access by subscription: who may use what follows the service's own state, whatever arrives in whatever order.

Events say that something changed, reads say what it is now; only `subscription.ended` is final by itself. A change of
the decision, and nothing else, is emitted as `access.granted` / `access.revoked`. The rules are in `facts.py` and
`ending.py` (one subscription) and `rules.py` (`decide`); here facts are taken out of events.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import select, update

from consumer.plugin import Context, Event, Reject, Source, Trust, handles
from handlers.access import ending, expectation, facts
from handlers.access.decisions import CUSTOMER_DUE, Cause, Kind, braked_customers, recompute
from handlers.access.links import link
from handlers.access.policy import Policy
from handlers.access.records import details_of, moment, reading_of
from handlers.access.store import (
    BATCH,
    SUBSCRIPTION_DUE,
    Change,
    apply,
    apply_where,
    ask_whose,
    show_unmapped,
    unidentified,
    wake,
    wake_unseen,
    wake_waiting,
)
from handlers.access.subscription import (
    CUSTOMER_RANK,
    END_REASONS,
    ENDED,
    PAST_DUE,
    STATUSES,
    Reading,
    Subscription,
    to_subscription,
)
from handlers.access.tables import CUSTOMERS, FINDINGS, SOURCES, SUBSCRIPTIONS, AccessSource, AccessSubscription
from handlers.findings import close_by_hand, close_finding, close_findings, open_finding, seen
from handlers.origin import own
from handlers.pointers import look_text, marked_as_test

OPTIONS = Policy
UNKNOWN_STATUS_WAIT = timedelta(hours=1)
TOO_NEW = timedelta(seconds=30)
DISAGREEMENT_WAIT, DISAGREEMENT_WAIT_MAX = timedelta(minutes=1), timedelta(days=1)


@handles("subscription.*", transactional=True, name="access:subscription")
async def subscription(event: Event, ctx: Context) -> None:
    """Everything the service says about a subscription, and every read of one."""
    policy: Policy = ctx.options
    if event.type == "subscription.observed":
        await _observed(event, ctx, policy)
        return
    if event.type == "subscription.unreadable":
        await _unreadable(event, ctx, policy)
        return
    if event.trust is Trust.CLAIMED:
        raise Reject("the event is not verified")
    if marked_as_test(event, policy.test_markers):
        ctx.log.info("subscription_event_ignored", type=event.type, event_id=event.id)
        return
    if event.subscription_id is None:
        await unidentified(ctx, event)
        return
    match event.type:
        case "subscription.created":
            await _created(event, ctx, policy, event.subscription_id)
        case "subscription.ended":
            await _ended(event, ctx, policy, event.subscription_id)
        case _:
            await _hinted(event, ctx, policy, event.subscription_id)


async def _created(event: Event, ctx: Context, policy: Policy, id_: str) -> None:
    """Grant access here (EV:subscription.created): by the read that follows, or provisionally when none comes."""
    change = await apply(ctx, event, id_, policy, partial(_heard, event=event, policy=policy))
    if change.after.status == ENDED:
        return
    _ask(event, ctx, policy, id_, change.after)
    if change.after.status is None:
        _unless_read(event, ctx, policy, id_)


def _ask(event: Event, ctx: Context, policy: Policy, id_: str, sub: Subscription) -> None:
    """Have it read. Who was kept waiting, by the log or by a service that was away, is heard of now: what goes on until
    it is read (case A25), and what counts as announced (case B31), does so from now."""
    ctx.request_read("subscription", id_)
    is_late = ctx.now - event.received_at >= max(policy.settle, policy.resubscribe / 10)
    if is_late and not (ctx.is_replay or ctx.is_history or ending.is_old_news(sub, event.occurred_at)):
        wake(ctx, id_, "heard", ctx.now, heard_at=event.received_at)


def _unless_read(event: Event, ctx: Context, policy: Policy, id_: str) -> None:
    """Take a signed webhook's word if nobody answers the read soon. Not that of a listing or a replay: it may have been
    overtaken long ago. And not that of an event that was itself read: then the API can be read, and where it shows no
    such subscription it was a test (case A47). The read is asked for now, so the time runs from now."""
    if policy.provisional_after is not None and event.source is Source.WEBHOOK and event.trust is Trust.SIGNED:
        due = max(event.received_at, ctx.now) + policy.provisional_after
        wake(ctx, id_, "provisional", due, heard_at=event.received_at)


async def _ended(event: Event, ctx: Context, policy: Policy, id_: str) -> None:
    """Final, and it does not wait for the reason; a read brings that later (case A45)."""
    reason = await _known_reason(event, ctx, id_, look_text(event, ("/end_reason",)))
    scheduled = look_text(event, ("/cancel_reason",)) is not None

    def fact(sub: Subscription) -> Subscription:
        heard = _heard(sub, event=event, policy=policy)
        return ending.ended(
            heard, at=event.received_at, ended_at=event.occurred_at, reason=reason, scheduled=scheduled, policy=policy
        )

    change = await apply(ctx, event, id_, policy, fact)
    if change.after.version == 0 or change.after.end_reason is None:
        ctx.request_read("subscription", id_)


async def _known_reason(event: Event, ctx: Context, id_: str, reason: str | None) -> str | None:
    """The end's reason, if it is a word we know. Another one is shown and not guessed at (case A35): the end stands,
    because its own word is known, and its reason counts as not said."""
    if reason is None or reason in END_REASONS:
        return reason
    ctx.log.warning("unknown_enum", field="subscription.end_reason", subscription_id=id_)
    await open_finding(ctx, FINDINGS, "unknown_end_reason", id_, event.received_at, {"end_reason": reason})
    return None


async def _hinted(event: Event, ctx: Context, policy: Policy, id_: str) -> None:
    """Something changed; a read says what. A charge after the end is flagged, never re-granted (case A22)."""

    def fact(sub: Subscription) -> Subscription:
        heard = _heard(sub, event=event, policy=policy)
        if event.source is Source.WEBHOOK or event.occurred_at is not None:
            heard = expectation.expecting(heard, event.type, event.received_at, event.occurred_at)
        if event.type == "subscription.past_due" and event.occurred_at is not None:
            return facts.past_due_heard(heard, min(event.occurred_at, event.received_at))
        charged_at = event.occurred_at and min(event.occurred_at, event.received_at)
        return facts.charge_heard(heard, charged_at) if event.type == "subscription.renewed" else heard

    change = await apply(ctx, event, id_, policy, fact)
    if change.after.status != ENDED:
        _ask(event, ctx, policy, id_, change.after)
    if event.type == "subscription.renewed" and change.after.status in (None, PAST_DUE):
        _unless_read(event, ctx, policy, id_)


def _heard(sub: Subscription, *, event: Event, policy: Policy) -> Subscription:
    known = facts.mentioned(sub, details_of(event, policy), "payload")
    return facts.hinted(known, event.received_at, event.occurred_at)


async def _observed(event: Event, ctx: Context, policy: Policy) -> None:
    """A read. An unknown status changes nothing and is shown (case A35)."""
    id_ = own(event).subscription_id
    reading = reading_of(event, policy)
    if id_ is None or reading is None:
        raise Reject("an observation needs a subscription, a version and a record")
    if reading.status not in STATUSES:
        ctx.log.warning("unknown_enum", field="subscription.status", subscription_id=id_)
        detail = {"status": reading.status[:255]}
        await open_finding(ctx, FINDINGS, "unknown_status", id_, event.received_at, detail)
        ctx.request_read("subscription", id_, event.received_at + UNKNOWN_STATUS_WAIT)
        return
    reason = await _known_reason(event, ctx, id_, reading.end_reason)
    said, reading = reading.end_reason, replace(reading, end_reason=reason)

    def fact(sub: Subscription) -> Subscription:
        after = facts.observed(sub, reading, event.received_at, policy)
        is_newest = reading.version > sub.version
        return expectation.seen(after, event.received_at, reading.shows) if is_newest else after

    change = await apply(ctx, event, id_, policy, fact)
    if reading.version > change.before.version:
        await _agreement(event, ctx, id_, reading, change, knows_reason=reason == said)
        again = expectation.next_read(change.after, event.received_at)
        if again is not None:
            ctx.request_read("subscription", id_, again)


async def _unreadable(event: Event, ctx: Context, policy: Policy) -> None:
    """The service says that it has no such subscription. That ends nothing (case G7, A53): what it grants goes on, and
    is shown. One that was only heard of is not granted anything by its event alone (case A47)."""
    id_, version = own(event).subscription_id, event.find("/data/version")
    if id_ is None or not isinstance(version, int):
        raise Reject("this needs a subscription and a version")
    if await ctx.locked(AccessSubscription, application=ctx.application, subscription_id=id_) is None:
        return
    change = await apply(ctx, event, id_, policy, lambda sub: facts.unreadable(sub, version))
    if change.after.is_unreadable and change.after.status is None and not change.after.is_live:
        wake(ctx, id_, "unread", event.received_at + TOO_NEW)  # it may only be too new to be read (case U30)
    elif change.after.is_unreadable and change.after.is_live:
        await _shown_unreadable(event, ctx, id_, change.after)


async def _shown_unreadable(event: Event, ctx: Context, id_: str, sub: Subscription) -> None:
    ctx.log.warning("subscription_unreadable", subscription_id=id_)
    detail = {"status": sub.status, "provisional": sub.provisional, "access": "kept" if sub.is_live else "withheld"}
    await open_finding(ctx, FINDINGS, "unreadable_subscription", id_, event.received_at, detail)


async def _agreement(
    event: Event, ctx: Context, id_: str, reading: Reading, change: Change, *, knows_reason: bool
) -> None:
    """A read that denies an end lags or lies: shown, and read again, less and less often; it stays ENDED."""
    at = event.received_at
    if change.after.status != ENDED or reading.status == ENDED:
        settled = ["unknown_status", "disagreement"] + (["unknown_end_reason"] if knows_reason else [])
        await close_findings(ctx, FINDINGS, settled, id_, at)
        return
    detail = {"read": reading.status, "read_at": reading.read_at.isoformat()}
    await open_finding(ctx, FINDINGS, "disagreement", id_, at, detail)
    since = change.before.settle_from or change.before.hinted_at
    wait = DISAGREEMENT_WAIT_MAX if since is None else min(max(DISAGREEMENT_WAIT, at - since), DISAGREEMENT_WAIT_MAX)
    ctx.request_read("subscription", id_, at + wait)


@handles(SUBSCRIPTION_DUE, transactional=True, name="access:subscription_due")
async def subscription_due(event: Event, ctx: Context) -> None:
    """A timer of one subscription went off."""
    policy: Policy = ctx.options
    id_, why, due = own(event).subscription_id, event.find("/data/why"), moment(event, ("/data/due",))
    if id_ is None or due is None:
        raise Reject("a timer needs a subscription and its time")
    match why:
        case "provisional":
            heard_at = moment(event, ("/data/heard_at",)) or due - (policy.provisional_after or timedelta(0))
            change = await apply(ctx, event, id_, policy, lambda sub: facts.provisional(sub, heard_at))
            if change.after.is_unreadable and change.after.status is None:
                await _shown_unreadable(event, ctx, id_, change.after)
        case "heard":
            await apply(ctx, event, id_, policy, lambda sub: facts.hinted(sub, event.received_at))
        case "unread":
            change = await apply(ctx, event, id_, policy, lambda sub: sub)
            if change.after.is_unreadable and change.after.status is None:
                await _shown_unreadable(event, ctx, id_, change.after)
        case "unresolved":
            sub = (await apply(ctx, event, id_, policy, lambda sub: sub)).after
            if sub.customer is None and sub.is_live:
                ctx.request_read("subscription", id_)
            ask_whose(ctx, sub)
        case "lease":
            await _lease_over(event, ctx, policy, id_, due)
        case "unmapped":
            await _still_unmapped(event, ctx, policy, id_)


async def _lease_over(event: Event, ctx: Context, policy: Policy, id_: str, due: datetime) -> None:
    """Nothing was heard since: read, and take nothing away (cases A14, A30, A51)."""

    def fact(sub: Subscription) -> Subscription:
        return facts.lease_over(sub, due, max(event.received_at, due), policy)

    change = await apply(ctx, event, id_, policy, fact)
    if change.touched("lease_until"):
        ctx.request_read("subscription", id_)
        ask_whose(ctx, change.after)


async def _still_unmapped(event: Event, ctx: Context, policy: Policy, id_: str) -> None:
    """Look again whether the price has a mapping by now (case A32). Where somebody asked for it (`wait_s` 0), the
    retries that began with the finding go on, and no others begin."""
    found = await ctx.locked(AccessSubscription, application=ctx.application, subscription_id=id_)
    if found is None:
        return
    sub = to_subscription(found)
    is_mapped = policy.grants_of(sub.price_id, sub.product_id) is not None
    if is_mapped or not sub.is_live:
        await close_finding(ctx, FINDINGS, "unmapped_price", id_, event.received_at)
        if sub.customer is not None:
            await recompute(ctx, sub.customer, policy, Cause(event_id=event.id, at=event.received_at, kind=Kind.TIMER))
        return
    waited = event.find("/data/wait_s")
    if not await seen(ctx, FINDINGS, "unmapped_price", [id_]):
        await show_unmapped(ctx, id_, sub, event.received_at)
    elif not waited:
        return
    doubled = 2 * timedelta(seconds=waited if isinstance(waited, int | float) else 0)
    wait = min(policy.unmapped_retry_max, max(policy.unmapped_retry, doubled))
    wake(ctx, id_, "unmapped", event.received_at + wait, wait.total_seconds())


@handles(CUSTOMER_DUE, transactional=True, name="access:customer_due")
async def customer_due(event: Event, ctx: Context) -> None:
    """A deadline of a customer's decision passed (case A41), or somebody asked for a fresh decision."""
    policy: Policy = ctx.options
    customer, due = own(event).customer, moment(event, ("/data/due",))
    if customer is None:
        raise Reject("a timer needs a customer")
    at = event.received_at if due is None else max(event.received_at, due)
    kind = Kind.OPERATOR if event.find("/data/released") is True else Kind.TIMER
    waits = event.find("/data/alone") is not True
    subscriptions = await recompute(ctx, customer, policy, Cause(event_id=event.id, at=at, kind=kind, waits=waits))
    if due is None:
        await wake_unseen(ctx, subscriptions, policy, at)


@handles("checkout.registered", transactional=True, name="access:checkout_registered")
async def checkout_registered(event: Event, ctx: Context) -> None:
    """The merchant said whose a checkout is; subscriptions that waited for it are attached now (case A37)."""
    policy: Policy = ctx.options
    said = own(event).data["data"]
    customer, session_id, order_id = said.get("customer"), said["session_id"], said.get("order_id")
    if customer is None:
        return
    await link(ctx.session, ctx.application, session_id, order_id, customer, event.received_at)
    matches = [SUBSCRIPTIONS.c.session_id == session_id]
    matches += [SUBSCRIPTIONS.c.order_id == order_id] if order_id else []

    def fact(sub: Subscription) -> Subscription:
        # A newer registration of its own session corrects an older one; one of the same order is a further checkout.
        if sub.session_id == session_id:
            return facts.attached(sub, customer, "checkout", event.received_at)
        return facts.attached(sub, customer, "order")

    await apply_where(ctx, event, policy, matches, fact)


@handles("session.observed", transactional=True, name="access:session_observed")
async def session_observed(event: Event, ctx: Context) -> None:
    """A read of a checkout session: whose its subscriptions are, unless somebody with a better word said so (U10)."""
    policy: Policy = ctx.options
    session_id = own(event).key.partition(":")[2]
    customer = look_text(event, policy.session_customer)
    if customer is None:
        return
    read_at = moment(event, ("/data/read_at",)) or event.received_at

    def fact(sub: Subscription) -> Subscription:
        return facts.attached(sub, customer, "session", read_at) if sub.session_id == session_id else sub

    await apply_where(ctx, event, policy, [SUBSCRIPTIONS.c.session_id == session_id], fact)


@handles("access.customer_attached", transactional=True, name="access:customer_attached")
async def customer_attached(event: Event, ctx: Context) -> None:
    """An operator or a resolver plugin says whose a subscription is (case A36); decided from the current state."""
    policy: Policy = ctx.options
    id_, customer, by = own(event).subscription_id, event.find("/data/customer"), event.find("/data/source")
    if id_ is None or not isinstance(customer, str) or not customer:
        raise Reject("attaching needs a subscription and a customer")
    source = by if by in CUSTOMER_RANK and by else "operator"
    await apply(ctx, event, id_, policy, lambda sub: facts.attached(sub, customer, source, event.received_at))


@handles("access.held", "access.complimentary_granted", transactional=True, name="access:source_added")
async def source_added(event: Event, ctx: Context) -> None:
    """An operator's hold or complimentary grant: a source of its own (case A42)."""
    policy: Policy = ctx.options
    customer = _customer(event)
    said: dict[str, Any] = event.data["data"]
    until, entitlement = moment(event, ("/data/until",)), said.get("entitlement")
    if said.get("until") is not None and until is None:
        raise Reject("until is no time; without one it would be for ever")
    if entitlement is not None and not (isinstance(entitlement, str) and entitlement):
        raise Reject("entitlement is no name; without one it would be all of them")
    source = AccessSource(
        application=ctx.application,
        id=event.id,
        kind="hold" if event.type == "access.held" else "complimentary",
        customer=customer,
        entitlement=entitlement,
        until=until,
        reason=said.get("reason"),
        by=said.get("by"),
        created_at=event.received_at,
    )
    await ctx.insert_new(source)
    await recompute(ctx, customer, policy, Cause(event_id=event.id, at=event.received_at, kind=Kind.OPERATOR))


@handles("access.hold_lifted", "access.complimentary_ended", transactional=True, name="access:source_ended")
async def source_ended(event: Event, ctx: Context) -> None:
    """An operator ends a hold or a complimentary grant, by its id."""
    policy: Policy = ctx.options
    customer = _customer(event)
    kind = "hold" if event.type == "access.hold_lifted" else "complimentary"
    one = (
        (SOURCES.c.application == ctx.application)
        & (SOURCES.c.id == str(event.find("/data/id")))
        & (SOURCES.c.customer == customer)
        & (SOURCES.c.kind == kind)
        & SOURCES.c.ended_at.is_(None)
    )
    await ctx.session.execute(update(SOURCES).where(one).values(ended_at=event.received_at))
    await recompute(ctx, customer, policy, Cause(event_id=event.id, at=event.received_at, kind=Kind.OPERATOR))


@handles("access.brake_released", transactional=True, name="access:brake_released")
async def brake_released(event: Event, ctx: Context) -> None:
    """An operator looked and lets the stopped revocations go, a batch at a time; the finding closes with the last."""
    after = str(own(event).find("/data/after") or "")
    customers = await braked_customers(ctx, BATCH, after=after)
    for customer in customers:
        ctx.emit(CUSTOMER_DUE, f"customer:{customer}", {"released": True})
    if len(customers) == BATCH:
        said = {**event.data["data"], "after": customers[-1]}
        ctx.emit("access.brake_released", event.key, said)
    elif not customers and not after:
        await close_finding(ctx, FINDINGS, "brake", ctx.application, event.received_at)


@handles("access.recheck", transactional=True, name="access:recheck")
async def recheck(event: Event, ctx: Context) -> None:
    """Decide anew for every customer, a batch at a time: after the policy or the mapping changed (case A32)."""
    after = str(own(event).find("/data/after") or "")
    wanted = (
        select(CUSTOMERS.c.customer)
        .where(CUSTOMERS.c.application == ctx.application, CUSTOMERS.c.customer > after)
        .order_by(CUSTOMERS.c.customer)
        .limit(BATCH)
    )
    customers = (await ctx.session.execute(wanted)).scalars().all()
    for customer in customers:
        ctx.emit(CUSTOMER_DUE, f"customer:{customer}", {})
    if len(customers) == BATCH:
        ctx.emit("access.recheck", event.key, {**event.data["data"], "after": customers[-1]})
    if not after:
        for kind, why in (("unmapped_price", "unmapped"), ("unresolved_subscriber", "unresolved")):
            await wake_waiting(ctx, kind, why, event.received_at, 10 * BATCH)


@handles("access.finding_closed", transactional=True, name="access:finding_closed")
async def finding_closed(event: Event, ctx: Context) -> None:
    """An operator settled a finding by hand: it stays closed."""
    await close_by_hand(own(event), ctx, FINDINGS)


def _customer(event: Event) -> str:
    customer = own(event).customer
    if customer is None:
        raise Reject("this needs a customer")
    return customer
