"""Access: whether what stands is what the rules give, subscription by subscription and customer by customer. Pure.

The rules are not written a second time: `handlers.access.rules.decide` says what should stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from consumer.console.invariants.orders import Findings, is_open, is_seen
from handlers.access.policy import Policy
from handlers.access.rules import Decision, OperatorSource, awaits_successor, decide
from handlers.access.subscription import ACTIVE, ENDED, PAST_DUE, Subscription

SLACK: Final = timedelta(minutes=10)
KINDS: Final = ("unresolved_subscriber", "unmapped_price", "charged_after_end", "disagreement", "brake",
                "unreadable_subscription", "unknown_status")  # fmt: skip


def of_subscription(
    id_: str, sub: Subscription, decisions: Mapping[str, Mapping[str, Any]], findings: Findings, policy: Policy
) -> tuple[str | None, list[str]]:
    """Of a live one, the word for whether it gives access and why (None: it is not live); and what is broken."""
    broken: list[str] = []
    is_late = None not in (sub.renewed_at, sub.ended_at) and sub.renewed_at > sub.ended_at  # type: ignore[operator]  # neither is None
    if sub.status == ENDED and is_late and not sub.charged_after_end:
        broken.append("after_end_unflagged")
    if sub.charged_after_end and not is_seen(findings, "charged_after_end", id_):
        broken.append("after_end_unseen")
    if not sub.is_live:
        return None, broken
    names = policy.grants_of(sub.price_id, sub.product_id)
    if names is None:
        broken += ["unmapped_unseen"] * (not is_seen(findings, "unmapped_price", id_))
        return "unmapped_price", broken
    if sub.customer is None:
        broken += ["unresolved_unseen"] * (not is_seen(findings, "unresolved_subscriber", id_))
        return "unresolved_subscriber", broken
    missing = [name for name in names if name not in decisions]
    if missing:
        return "undecided", [*broken, "access_missing"]
    refused = [decisions[name] for name in names if not decisions[name]["allowed"]]
    return ("access" if not refused else _why(refused[0])), broken


def against_service(
    id_: str, sub: Subscription | None, status: str, findings: Findings, *, read_at: datetime
) -> str | None:
    """What is broken between a subscription here and the status that the service showed at `read_at`. A read from
    before the last event says nothing against an end of which that event may have told."""
    if sub is None:
        return "subscription_unknown" if status in (ACTIVE, PAST_DUE) else None
    if status == ENDED and sub.is_live:
        return "ended_kept"
    is_since = sub.hinted_at is None or read_at >= sub.hinted_at
    if status in (ACTIVE, PAST_DUE) and sub.status == ENDED and is_since and not is_seen(findings, "disagreement", id_):
        return "revived"
    return None


@dataclass(frozen=True, kw_only=True)
class Customer:
    """All that decides about one customer, and what stands. `as_of`: the time of the last decision."""

    subscriptions: Mapping[str, Subscription]
    grants: Sequence[OperatorSource] = ()
    holds: Sequence[OperatorSource] = ()
    standing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    as_of: datetime | None = None


def of_customer(one: Customer, policy: Policy, findings: Findings, application: str, now: datetime) -> list[str]:
    """What is broken about what stands."""
    broken: list[str] = []
    as_of = one.as_of or now
    then, lately = _decided(one, policy, as_of), _decided(one, policy, max(as_of, now - SLACK))
    for name, row in one.standing.items():
        if row["braked"]:
            broken += ["brake_unseen"] * (not is_open(findings, "brake", application))
            continue
        if awaits_successor(row) and max(as_of, now - SLACK) < row["until"]:
            continue
        should, later = then.get(name), lately.get(name)
        if should is None or should.allowed == row["allowed"]:
            is_missed = later is not None and later.allowed != row["allowed"]
            broken += ["deadline_missed"] * is_missed
        elif later is None or later.allowed != row["allowed"]:
            broken.append("access_without_source" if row["allowed"] else "access_withheld")
    return broken


def word_of(row: Mapping[str, Any]) -> str:
    """Why a decision is as it is, in one word: the first of its reasons, without its subject."""
    return "braked" if row["braked"] else _why(row)


def _decided(one: Customer, policy: Policy, at: datetime) -> Mapping[str, Decision]:
    allowed = frozenset(name for name, row in one.standing.items() if row["allowed"])
    return decide(one.subscriptions, one.grants, one.holds, policy, at, known=one.standing, standing=allowed)


def _why(row: Mapping[str, Any]) -> str:
    reasons = list(row["reasons"] or ())
    return str(reasons[0]).partition(":")[0] if reasons else "no_source"
