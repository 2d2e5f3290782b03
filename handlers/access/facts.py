"""What a fact does to a subscription. Pure: the subscription as we know it and a fact in, what it is afterwards out.

    fact                          effect                                                           case
    subscription.created          heard of; ACTIVE for now only if nobody answers the read         A1 A6
    the service has no such one   nothing ends by it; nothing is granted unread either             A47 A53
    subscription.renewed          the same, of one that is PAST_DUE or was never read              A6 A10 A41
    a read                        the newest version is the state                                  A5 A7 A10 A17 A40
    any other event               asks for a read; payloads say that something changed, not what   U29

What ends one, and what comes after the end, is in `ending.py`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from handlers.access.ending import ended, is_announced, is_old_news, is_scheduled, renewed
from handlers.access.policy import Policy
from handlers.access.subscription import ACTIVE, CUSTOMER_RANK, ENDED, PAST_DUE, Details, Reading, Subscription

CANCEL_FIELDS = ("cancel_at_period_end", "cancel_reason", "merchant_cancel_requested")


def mentioned(sub: Subscription, details: Details, source: str) -> Subscription:
    """Details fill what is unknown; a read's replace a payload's, a payload's replace nothing (case U29)."""
    from_read = source == "read"

    def pick(known: str | None, said: str | None) -> str | None:
        return (said or known) if from_read else (known or said)

    known = replace(
        sub,
        price_id=pick(sub.price_id, details.price_id),
        product_id=pick(sub.product_id, details.product_id),
        session_id=pick(sub.session_id, details.session_id),
        order_id=pick(sub.order_id, details.order_id),
    )
    return known if details.customer is None else attached(known, details.customer, source)


def attached(sub: Subscription, customer: str, source: str, at: datetime | None = None) -> Subscription:
    """Whose it is, unless somebody with a better word said so already.

    Who says it again later corrects himself; `at` is when it was said, and without it nothing is corrected. So the
    same words, told again in any order, end the same.
    """
    rank, known = CUSTOMER_RANK[source], CUSTOMER_RANK[sub.customer_source]
    if sub.customer is not None and rank <= known:
        corrects = rank == known and at is not None and (sub.attached_at is None or at > sub.attached_at)
        if not corrects:
            return sub
    return replace(sub, customer=customer, customer_source=source, attached_at=at)


def asks_session(sub: Subscription, before: Subscription | None = None) -> bool:
    """Whether its checkout session is to be read for whose it is: while it lives and nobody knows; with `before`, when
    it has just begun to live, or has another session, and nobody with a better word has said it. Not before its own
    record was read, which may say it."""
    if sub.session_id is None or not sub.is_live:
        return False
    if before is None:
        return sub.customer is None
    rank, of_session = CUSTOMER_RANK[sub.customer_source], CUSTOMER_RANK["session"]
    if sub.session_id != before.session_id:
        return rank <= of_session
    return not before.is_live and rank < of_session


def hinted(sub: Subscription, at: datetime, said_at: datetime | None = None) -> Subscription:
    """A verified event spoke of it: what a read shows next was announced. Not by old news, which a backfill or a replay
    brings (case B31)."""
    if sub.status == ENDED or is_old_news(sub, said_at):
        return sub
    return replace(sub, hinted_at=max(at, sub.hinted_at or at), unannounced=False)


def lease_over(sub: Subscription, due: datetime, at: datetime, policy: Policy) -> Subscription:
    """The lease that ended at `due` is renewed once per timer; one that moved on meanwhile stays (case A14)."""
    if sub.lease_until is None or sub.lease_until > due:
        return sub
    return replace(sub, lease_until=leased_until(sub, at, policy))


def provisional(sub: Subscription, heard_at: datetime) -> Subscription:
    """No read has come since `subscription.created`, or since a charge while PAST_DUE: it counts as ACTIVE until one
    does. The start of PAST_DUE stays: a charge that was old news made nothing good (cases A9, A10). Not while the
    service says that it has no such subscription: it may be a test event's (case A47)."""
    if sub.is_unreadable:
        return sub
    is_unread = sub.status is None and not sub.version
    is_charged = sub.status == PAST_DUE and (sub.read_at is None or sub.read_at < heard_at)
    return replace(sub, status=ACTIVE, provisional=True) if is_unread or is_charged else sub


def unreadable(sub: Subscription, version: int) -> Subscription:
    """The service says that it has no such subscription: remembered, and nothing is taken away by it (case G7)."""
    is_news = version > max(sub.version, sub.unreadable_version or 0)
    return replace(sub, unreadable_version=version) if is_news else sub


def observed(sub: Subscription, reading: Reading, at: datetime, policy: Policy) -> Subscription:
    """A read: the newest is the state, and ENDED in any of them is final."""
    newer = reading.version > sub.version
    known = sub
    if newer:
        known = replace(
            mentioned(sub, reading.details, "read"),
            version=reading.version,
            unreadable_version=sub.unreadable_version if (sub.unreadable_version or 0) > reading.version else None,
            read_at=reading.read_at,
            period_end=reading.period_end or sub.period_end,
            end_reason=reading.end_reason or sub.end_reason,
            **{name: getattr(reading, name) for name in CANCEL_FIELDS if name in reading.shows},
        )
    if reading.status == ENDED:
        return ended(
            known,
            at=at,
            ended_at=reading.ended_at,
            reason=reading.end_reason,
            scheduled=is_scheduled(sub),
            by_read=True,
            explains=known.end_reason != sub.end_reason,
            policy=policy,
        )
    if not newer or sub.status == ENDED:
        return known
    since = _past_due_since(known, reading)
    worse = reading.status == PAST_DUE and not is_announced(sub, at)
    live = replace(
        known,
        status=reading.status,
        active_at=reading.read_at if reading.status == ACTIVE else sub.active_at,
        provisional=False,
        past_due_since=since if reading.status == PAST_DUE else None,
        unannounced=reading.status == PAST_DUE and (sub.unannounced if sub.status == PAST_DUE else worse),
    )
    return replace(live, lease_until=leased_until(live, at, policy))


def past_due_heard(sub: Subscription, began: datetime) -> Subscription:
    """`subscription.past_due` says when it began: grace counts from then, also where the first read that shows it comes
    days later. Older news than the last charge, or than a read that says ACTIVE, are of a failure that was made good.
    """
    since, charged = sub.past_due_since, sub.renewed_at
    active_at = sub.active_at or (sub.read_at if sub.status == ACTIVE else None)
    is_made_good = active_at is not None and began <= active_at
    if sub.status == ENDED or is_made_good or (charged is not None and began <= charged):
        return sub
    heard = replace(sub, past_due_heard_at=max(began, sub.past_due_heard_at or began))
    if since is None or (charged is not None and since <= charged):
        return replace(heard, past_due_since=began)
    return replace(heard, past_due_since=min(since, began) if sub.status == PAST_DUE else max(since, began))


def charge_heard(sub: Subscription, at: datetime | None) -> Subscription:
    """A charge made good what had failed before it. A later failure that was heard of earlier counts from its own
    start: after an outage events come newest first (cases A9, A10, G1)."""
    after = renewed(sub, at)
    since, newest = after.past_due_since, after.past_due_heard_at
    if since is None or newest is None or _stands(after, since) or not _stands(after, newest):
        return after
    return replace(after, past_due_since=newest)


def _stands(sub: Subscription, start: datetime) -> bool:
    """Whether no charge that we know of has made this start of PAST_DUE good."""
    return sub.renewed_at is None or start > sub.renewed_at


def _past_due_since(sub: Subscription, reading: Reading) -> datetime:
    """When PAST_DUE began: the earliest that the record, an event or the first read says. Never moved later (A9), but
    what a charge has made good since is over (A10)."""
    known = [at for at in (sub.past_due_since, reading.past_due_since) if at is not None and _stands(sub, at)]
    return min([*known, reading.read_at])


def leased_until(sub: Subscription, at: datetime, policy: Policy) -> datetime | None:
    """When a live subscription is read again if nothing is heard of it (cases A14, A30, A51)."""
    if not sub.is_live:
        return None
    if sub.status == PAST_DUE:
        return at + policy.past_due_lease
    if sub.period_end is None:
        return at + policy.lease
    expected = sub.period_end + policy.lease_slack
    return expected if expected > at else at + policy.past_due_lease
