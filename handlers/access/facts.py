"""What a fact does to a subscription. Pure: the subscription as we know it and a fact in, what it is afterwards out.

    fact                          effect                                                           case
    subscription.created          heard of; ACTIVE for now only if nobody answers the read         A1 A6
    the service has no such one   nothing ends by it; nothing is granted unread either             A47 A53
    subscription.renewed          the same, of one that is PAST_DUE                                A10 A41
    a read                        the newest version is the state                                  A5 A7 A10 A17 A40
    subscription.ended            ENDED for good, at once                                          A13 A16 A21 A45
    a read that says ENDED        ENDED for good, whatever its version                             A14 B20
    anything once ENDED           nothing; a later charge is flagged                               A22 A24
    any other event               asks for a read; payloads say that something changed, not what   U29

An end that may be one half of a re-subscription settles first: its grant outlives it for a while (case A25).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from handlers.access.policy import Policy
from handlers.access.subscription import (
    ACTIVE,
    CUSTOMER_RANK,
    ENDED,
    PAST_DUE,
    PAYER_CANCELED,
    Details,
    Reading,
    Subscription,
)

CANCEL_FIELDS = ("cancel_at_period_end", "cancel_reason", "merchant_cancel_requested")
ANNOUNCED = timedelta(hours=1)  # a read this soon after a verified event was announced by it


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


def hinted(sub: Subscription, at: datetime) -> Subscription:
    """A verified event spoke of it: what a read shows next was announced."""
    if sub.status == ENDED:
        return sub
    return replace(sub, hinted_at=max(at, sub.hinted_at or at), unannounced=False)


def lease_over(sub: Subscription, due: datetime, at: datetime, policy: Policy) -> Subscription:
    """The lease that ended at `due` is renewed once per timer; one that moved on meanwhile stays (case A14)."""
    if sub.lease_until is None or sub.lease_until > due:
        return sub
    return replace(sub, lease_until=leased_until(sub, at, policy))


def provisional(sub: Subscription, heard_at: datetime) -> Subscription:
    """No read has come since `subscription.created`, or since a charge while PAST_DUE: it counts as ACTIVE until one
    does. The start of PAST_DUE stays, for a read that knows better (cases A9, A10). Not while the service says that it
    has no such subscription: it may be a test event's (case A47)."""
    if sub.is_unreadable:
        return sub
    is_unread = sub.status is None and not sub.version
    is_charged = sub.status == PAST_DUE and (sub.read_at is None or sub.read_at < heard_at)
    return replace(sub, status=ACTIVE, provisional=True) if is_unread or is_charged else sub


def unreadable(sub: Subscription, version: int) -> Subscription:
    """The service says that it has no such subscription: remembered, and nothing is taken away by it (case G7)."""
    is_news = version > max(sub.version, sub.unreadable_version or 0)
    return replace(sub, unreadable_version=version) if is_news else sub


def renewed(sub: Subscription, occurred_at: datetime | None) -> Subscription:
    """A charge. On an ended subscription it is flagged, and changes nothing else (case A22)."""
    known = [at for at in (sub.renewed_at, occurred_at) if at is not None]
    after = replace(sub, renewed_at=max(known) if known else None)
    if sub.status != ENDED:
        return after
    end = sub.ended_at or sub.read_at
    # Without the service's times the order of arrival decides, and a tie is late: an operator looks, nothing is done.
    late = occurred_at is None or end is None or occurred_at >= end
    return replace(after, charged_after_end=sub.charged_after_end or late)


def ended(
    sub: Subscription,
    *,
    at: datetime,
    ended_at: datetime | None,
    reason: str | None,
    scheduled: bool = False,
    by_read: bool = False,
    explains: bool = False,
    policy: Policy,
) -> Subscription:
    """Final (SU-T11). `at` is our clock, `ended_at` the service's; `scheduled` when a cancel is known to have been,
    `explains` when a read brings another reason than was known.

    An end that only a read shows is old news; it settles for a moment, so that one walk over all subscriptions,
    which shows them one by one, can show its successor too. The same end read again does not cut that short.
    """
    times = [time for time in (sub.ended_at, ended_at) if time is not None]
    first = sub.status != ENDED
    after = replace(
        sub,
        status=ENDED,
        provisional=False,
        end_reason=sub.end_reason or reason,
        ended_at=min(times) if times else None,
        past_due_since=None,
        lease_until=None,
        settle_from=at if first and sub.is_live else sub.settle_from,
        unannounced=by_read and (sub.unannounced if not first else sub.is_live and not is_announced(sub, at)),
    )
    late = after.renewed_at is not None and after.ended_at is not None and after.renewed_at >= after.ended_at
    after = replace(after, charged_after_end=sub.charged_after_end or late)
    still_open = first or (sub.settle_until is not None and at < sub.settle_until)
    if not still_open:
        return after
    until = settles_until(after, policy, scheduled=scheduled or is_scheduled(after))
    if by_read and (first or not explains) and after.settle_from is not None:
        until = max(until or at, after.settle_from + policy.settle)
    return replace(after, settle_until=until)


def is_announced(sub: Subscription, at: datetime) -> bool:
    """Whether a verified event spoke of it not long before."""
    return sub.hinted_at is not None and at - sub.hinted_at < ANNOUNCED


def is_scheduled(sub: Subscription) -> bool:
    """Whether a cancel at the period's end is known of."""
    return sub.cancel_at_period_end or sub.merchant_cancel_requested or sub.cancel_reason is not None


def settles_until(sub: Subscription, policy: Policy, *, scheduled: bool) -> datetime | None:
    """How long an ended subscription still grants, for its successor to arrive; None: not at all.

    A payer's cancel is scheduled first and waits for the period's end (SU-T6). So PAYER_CANCELED before that, or
    without a schedule, is a re-subscription (SU-T10). A merchant's cancel and a failed payment revoke at once.
    Whoever has scheduled an end may still re-subscribe before it: where the period is not known, that is not ruled out.
    """
    if sub.settle_from is None or sub.end_reason not in (None, PAYER_CANCELED):
        return None
    # An end whose time the service does not say came when we heard of it: the period's end is days away, or it is not.
    early = None if sub.period_end is None else (sub.ended_at or sub.settle_from) < sub.period_end
    if scheduled and early is not True:
        may_be_half = early is None and sub.end_reason == PAYER_CANCELED and not sub.merchant_cancel_requested
        return sub.settle_from + policy.settle if may_be_half else None
    return sub.settle_from + (policy.resubscribe if sub.end_reason == PAYER_CANCELED else policy.settle)


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
    since = known.past_due_since or min(reading.past_due_since or reading.read_at, reading.read_at)
    worse = reading.status == PAST_DUE and not is_announced(sub, at)
    live = replace(
        known,
        status=reading.status,
        provisional=False,
        past_due_since=since if reading.status == PAST_DUE else None,
        unannounced=reading.status == PAST_DUE and (sub.unannounced if sub.status == PAST_DUE else worse),
    )
    return replace(live, lease_until=leased_until(live, at, policy))


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
