"""The end of a subscription, and what comes after it. Pure.

    fact                          effect                                                           case
    subscription.ended            ENDED for good, at once                                          A13 A16 A21 A45
    a read that says ENDED        ENDED for good, whatever its version                             A14 B20
    anything once ENDED           nothing; a later charge is flagged                               A22 A24

An end that may be one half of a re-subscription settles first: its grant outlives it for a while (case A25).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from handlers.access.policy import Policy
from handlers.access.subscription import ENDED, PAYER_CANCELED, Subscription

ANNOUNCED = timedelta(hours=1)  # a read this soon after a verified event was announced by it; reads lag less


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


def is_announced(sub: Subscription, at: datetime) -> bool:
    """Whether a verified event spoke of it not long before."""
    return sub.hinted_at is not None and at - sub.hinted_at < ANNOUNCED


def is_old_news(sub: Subscription, said_at: datetime | None) -> bool:
    """Whether a read said ACTIVE long after this happened: what came of it was shown then."""
    return said_at is not None and sub.active_at is not None and sub.active_at - said_at >= ANNOUNCED


def is_scheduled(sub: Subscription) -> bool:
    """Whether a cancel at the period's end is known of."""
    return sub.cancel_at_period_end or sub.merchant_cancel_requested or sub.cancel_reason is not None


def settles_until(sub: Subscription, policy: Policy, *, scheduled: bool) -> datetime | None:
    """How long an ended subscription still grants, for its successor to arrive; None: not at all.

    A payer's cancel is scheduled first and waits for the period's end (SU-T6). So PAYER_CANCELED before that, or
    without a schedule, is a re-subscription (SU-T10). A merchant's cancel and a failed payment revoke at once.
    Whoever has scheduled an end may still re-subscribe before it: where the period is not known, that is not ruled out,
    also while the event does not say the end's reason.
    """
    if sub.settle_from is None or sub.end_reason not in (None, PAYER_CANCELED):
        return None
    # An end whose time the service does not say came when we heard of it: the period's end is days away, or it is not.
    early = None if sub.period_end is None else (sub.ended_at or sub.settle_from) < sub.period_end
    if scheduled and early is not True:
        is_payers = PAYER_CANCELED in (sub.end_reason, sub.cancel_reason)
        may_be_half = early is None and is_payers and not sub.merchant_cancel_requested
        return sub.settle_from + policy.settle if may_be_half else None
    return sub.settle_from + (policy.resubscribe if sub.end_reason == PAYER_CANCELED else policy.settle)
