"""What a verified event lets the next read show; a read that shows otherwise is old, and is made again. Pure.

Reads may lag behind events (case U30). The read stays the state, whatever it shows: an expectation only asks sooner
than the lease or a reconcile would, a few times, and then takes the read's word. For `subscription.ended` nothing is
expected: it is final by itself, and a read that denies it is a finding (`disagreement`).

    event                          expected of a read                                   else
    past_due, payment_failed       PAST_DUE                                             read again
    renewed                        ACTIVE, in a period that ends after the charge       read again
    cancel_scheduled               will end                                             read again
    cancel_withdrawn               will not end, unless the merchant's cancel stands    read again
    any of them, once ENDED        nothing                                              -
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from handlers.access.subscription import ACTIVE, ENDED, PAST_DUE, Subscription

EXPECTS = {
    "subscription.past_due": "past_due",
    "subscription.payment_failed": "past_due",
    "subscription.renewed": "renewed",
    "subscription.cancel_scheduled": "cancel",
    "subscription.cancel_withdrawn": "no_cancel",
}
FIRST_WAIT, GIVE_UP_AFTER = timedelta(seconds=10), timedelta(hours=1)


def expecting(sub: Subscription, event_type: str, arrived: datetime, said_at: datetime | None) -> Subscription:
    """An event arrived; the newest one counts. Old news (by the service's own time) lets nothing be expected."""
    word = EXPECTS.get(event_type)
    if word is None or sub.status == ENDED:
        return sub
    if said_at is not None and arrived - said_at >= GIVE_UP_AFTER:
        return sub
    if said_at is not None and sub.awaits_at is not None and said_at < sub.awaits_at:
        return sub
    return replace(sub, awaits=word, awaits_at=said_at, awaits_since=arrived)


def seen(sub: Subscription, at: datetime, shows: Collection[str]) -> Subscription:
    """The newest read is in `sub`; `shows` names the fields of its record. What was awaited ends when it has come,
    when it can no longer come, and when it has not come for an hour."""
    if sub.awaits is None or not (sub.status == ENDED or _is_met(sub, shows) or _is_over(sub, at)):
        return sub
    return replace(sub, awaits=None, awaits_at=None, awaits_since=None)


def next_read(sub: Subscription, at: datetime) -> datetime | None:
    """When to read again because the last read did not show what was awaited; the waits double from ten seconds."""
    if sub.awaits is None or sub.awaits_since is None:
        return None
    return at + max(FIRST_WAIT, at - sub.awaits_since)


def _is_over(sub: Subscription, at: datetime) -> bool:
    return sub.awaits_since is None or at - sub.awaits_since >= GIVE_UP_AFTER


def _is_met(sub: Subscription, shows: Collection[str]) -> bool:
    match sub.awaits:
        case "past_due":
            return sub.status == PAST_DUE
        case "renewed":
            is_new_period = sub.period_end is None or sub.awaits_at is None or sub.period_end > sub.awaits_at
            return sub.status == ACTIVE and is_new_period
        case "cancel":
            return sub.will_end or "cancel_at_period_end" not in shows
        case _:
            return not sub.cancel_at_period_end or sub.merchant_cancel_requested
