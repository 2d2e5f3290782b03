"""Who has access to what, and why. Pure: no I/O, no clock of its own.

    subscription                     access by it                                          case
    ACTIVE                           yes; a passed period end alone takes nothing          A1 A5 A30 A51
    ACTIVE, unread so far            yes, provisionally                                    the access model
    PAST_DUE, policy keep            yes                                                   A8
    PAST_DUE, policy grace           until its start plus the grace, whatever fails then   A8 A9 A41 A43
    charged since then, not read     what stands goes on for a grace from the charge       A10 A34 A41
    PAST_DUE, policy revoke          no                                                    A8
    ENDED                            no; what stands goes on while it settles              A13 A21 A24 A25
    the last one ended, one unread   what stands goes on until it is read, for a while     A27
    heard of, never read             no word                                               A3

    beside subscriptions             access                                                case
    complimentary grant              yes, until its end; no subscription event clears it   A42
    hold                             no, whatever else grants                              A42

Grants of one entitlement are a union (case A27); entitlements are independent of each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from handlers.access.policy import Policy
from handlers.access.subscription import ACTIVE, ENDED, PAST_DUE, Subscription

SUCCESSOR = "settling:successor"
"""The reason of what goes on until those who are unread are read."""


@dataclass(frozen=True, kw_only=True)
class OperatorSource:
    """An operator's grant or hold. `entitlement` None: all of them; `until` None: until it is lifted."""

    id: str
    entitlement: str | None = None
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """One reason for or against access, and when it changes by itself."""

    allowed: bool
    reason: str
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Access to one entitlement: `until` when it ends by policy (None: open end), `next_check` when to decide again."""

    allowed: bool
    until: datetime | None
    reasons: tuple[str, ...]
    next_check: datetime | None = None


def decide(
    subscriptions: Mapping[str, Subscription],
    grants: Iterable[OperatorSource],
    holds: Iterable[OperatorSource],
    policy: Policy,
    now: datetime,
    known: Iterable[str] = (),
    standing: Collection[str] = (),
) -> dict[str, Decision]:
    """Entitlement to decision, for everything one customer has or had.

    `subscriptions` by id; `known` are entitlements decided on before, `standing` those that are allowed. While a
    live subscription's price is not mapped, those that nothing else speaks for are left out: the queue decides, not the
    gap (case A32).
    """
    sources: dict[str, list[Source]] = {}
    unmapped = False
    for id_, subscription in sorted(subscriptions.items()):
        names = policy.grants_of(subscription.price_id, subscription.product_id)
        unmapped = unmapped or (names is None and subscription.is_live)
        for name in names or ():
            source = by_subscription(id_, subscription, policy, now, stands=name in standing)
            if source is not None:
                sources.setdefault(name, []).append(source)
    held = tuple(holds)
    for grant in grants:
        if grant.until is None or now < grant.until:
            source = Source(allowed=True, reason=f"complimentary:{grant.id}", until=grant.until)
            for name in (grant.entitlement,) if grant.entitlement else sorted(policy.every_entitlement):
                sources.setdefault(name, []).append(source)
    if not unmapped:
        for name in known:
            sources.setdefault(name, [])
    for name in sources.keys() & set(standing):
        if not any(source.allowed for source in sources[name]):
            sources[name] += _unread(name, subscriptions, policy, now)
    return {name: _united(found, holding(held, name, now)) for name, found in sorted(sources.items())}


def by_subscription(id_: str, sub: Subscription, policy: Policy, now: datetime, *, stands: bool) -> Source | None:
    """What one subscription says, or None while nothing is known of it. `stands`: whether what it may grant is allowed
    so far. An end that settles, or a charge that no read shows yet, goes on with that, and grants nothing anew: a grace
    that was over stays over (A41)."""
    if sub.status == ACTIVE:
        word = "provisional" if sub.provisional else "ending" if sub.will_end else "active"
        return Source(allowed=True, reason=f"{word}:{id_}")
    if sub.status == PAST_DUE:
        grace, since = policy.grace(sub.price_id), sub.grace_from if stands else sub.past_due_since
        if grace is None or since is None:
            return Source(allowed=True, reason=f"past_due:{id_}")
        deadline = since + grace
        if now < deadline:
            return Source(allowed=True, reason=f"grace:{id_}", until=deadline)
        return Source(allowed=False, reason=f"grace_over:{id_}")
    if sub.status == ENDED:
        if stands and sub.settle_until is not None and now < sub.settle_until:
            return Source(allowed=True, reason=f"settling:{id_}", until=sub.settle_until)
        return Source(allowed=False, reason=f"ended:{id_}" + (f":{sub.end_reason}" if sub.end_reason else ""))
    return None


def _unread(name: str, subscriptions: Mapping[str, Subscription], policy: Policy, now: datetime) -> list[Source]:
    """Subscriptions that were heard of and not read yet, and may grant this: what stands goes on for a while, until the
    read says (cases A25, A27). They grant nothing that does not stand."""
    found = []
    for id_, sub in sorted(subscriptions.items()):
        if sub.status is not None or sub.is_unreadable or sub.hinted_at is None:
            continue
        names, until = policy.grants_of(sub.price_id, sub.product_id), sub.hinted_at + policy.resubscribe
        if now < until and (names is None or name in names):
            found.append(Source(allowed=True, reason=f"settling:{id_}", until=until))
    return found


def goes_on_until(
    decision: Decision,
    standing: Mapping[str, Any],
    subscriptions: Mapping[str, Subscription],
    policy: Policy,
    now: datetime,
    *,
    is_told: bool,
) -> datetime | None:
    """Until when what stands may go on though this decision ends it; None: not at all.

    A successor whose events name no customer is a stranger's until it is read (cases A25, U29). So what an ended
    subscription gave waits for those who are unread, once, for `resubscribe` at most. Not where it is told by an event
    (`is_told`; A21), nor where it has settled for so long already.
    """
    if decision.allowed or subject_of(decision.reasons[0], "held") is not None:
        return None
    reasons: Sequence[str] = standing["reasons"]
    if awaits_successor(standing):
        return standing["until"] if now < standing["until"] else None
    ended = [one for reason in reasons if (one := subscriptions.get(subject_of(reason) or "")) and one.status == ENDED]
    may_be_half = not is_told and not all(_has_settled(one, policy) for one in ended)
    return now + policy.resubscribe if may_be_half else None


def awaits_successor(standing: Mapping[str, Any]) -> bool:
    """Whether what stands goes on for a subscription of which nobody knows yet whose it is."""
    return bool(standing["allowed"] and standing["until"] is not None and SUCCESSOR in standing["reasons"])


def subject_of(reason: str, word: str | None = None) -> str | None:
    """Whose a reason is: a subscription, a gift, a hold; None for another word than this."""
    said, _, subject = reason.partition(":")
    return subject if word in (None, said) else None


def _has_settled(sub: Subscription, policy: Policy) -> bool:
    """Whether it was given the time of a re-subscription."""
    if sub.settle_from is None or sub.settle_until is None:
        return False
    return sub.settle_until - sub.settle_from >= policy.resubscribe


def holding(holds: Iterable[OperatorSource], name: str, now: datetime) -> list[OperatorSource]:
    """Those of the holds that stop this entitlement now."""
    return [h for h in holds if h.entitlement in (None, name) and (h.until is None or now < h.until)]


def _united(sources: list[Source], holds: list[OperatorSource]) -> Decision:
    granting = [source for source in sources if source.allowed]
    ends = [source.until for source in granting if source.until is not None]
    until = max(ends) if granting and len(ends) == len(granting) else None
    if holds:
        lifts = [hold.until for hold in holds if hold.until is not None]
        reasons = tuple(f"held:{hold.id}" for hold in holds)
        return Decision(allowed=False, until=None, reasons=reasons, next_check=min(lifts) if lifts else None)
    reasons = tuple(source.reason for source in (granting or sources)) or ("no_source",)
    return Decision(allowed=bool(granting), until=until, reasons=reasons, next_check=min(ends) if ends else None)
