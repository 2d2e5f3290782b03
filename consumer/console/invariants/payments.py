"""Payments: the class of one payment, from what the books say of it and its order. Pure (cases F28, F29, B33, A22)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from consumer.console.invariants.orders import BookedOrder, Findings, class_of, is_open, is_seen, is_settled
from consumer.console.invariants.report import Class, micro_of
from handlers.access.subscription import ENDED, Subscription
from handlers.fulfilment.order import decimal

SUCCEEDED: Final = "SUCCEEDED"


@dataclass(frozen=True, kw_only=True)
class Payment:
    """One SUCCEEDED payment as it was read. `is_observed`: an observation of it was published; `is_remembered`: it
    was there at the first walk. `is_shown`: its record is at hand, not the status alone."""

    id: str
    micro: int | None = None
    order_id: str | None = None
    subscription_id: str | None = None
    at: datetime | None = None
    is_observed: bool = True
    is_remembered: bool = False
    is_shown: bool = True


@dataclass(frozen=True, kw_only=True)
class Around:
    """What the books say around a payment. `is_kept`: it is a row of theirs; `is_first`: no other payment of its order
    was seen before it. `is_period`: it named a subscription's session alone.
    `subscription_state`: what the service showed last of it."""

    order: BookedOrder | None = None
    is_kept: bool = False
    is_first: bool = True
    is_period: bool = False
    subscription: Subscription | None = None
    subscription_state: str | None = None
    findings: Findings = field(default_factory=dict)


def classified(payment: Payment, around: Around) -> tuple[Class, str | None]:
    """The class, and the code of what is broken about it."""
    if payment.subscription_id is not None:
        return _of_subscription(payment, around)
    if around.is_period:
        return Class.PERIOD, None
    order = around.order
    if payment.is_remembered and not around.is_kept and (order is None or order.order.paid_at is None):
        return Class.BEFORE, None
    if order is not None and order.order.paid_at is not None:
        return _of_paid_order(payment, order, around)
    if not around.is_kept:
        return Class.UNEXPLAINED, "payment_unrecorded" if payment.is_observed else "payment_unseen"
    subjects = [payment.id] + ([payment.order_id] if payment.order_id else [])
    return _seen(around.findings, "orphan_payment", subjects, Class.ORPHAN, "orphan_unseen")


def _of_paid_order(payment: Payment, order: BookedOrder, around: Around) -> tuple[Class, str | None]:
    if not around.is_first:
        if payment.is_remembered and not around.is_kept:
            return Class.BEFORE, None
        return _seen(around.findings, "duplicate_payment", [order.order_id], Class.DUPLICATE, "duplicate_unseen")
    found = class_of(order)
    costs = order.order.expected_amount if order.order.amount is None else order.order.amount
    wanted = micro_of(decimal(costs))
    is_less = payment.micro is not None and wanted is not None and payment.micro < wanted
    is_judged = order.order.amount is not None or order.order.paid_amount is not None
    if not (is_less and is_judged) or found not in (Class.FULFILLED, Class.LATE, Class.DUE) or _is_shown(order):
        return found, None
    return found, "underpaid"


def _is_shown(order: BookedOrder) -> bool:
    """Whether an operator sees, or has settled, that the payments of an order that names no amount itself are not what
    was registered: one too small, or two of them."""
    kinds = ("amount_mismatch", "duplicate_payment") if order.order.amount is None else ()
    return any(is_seen(order.findings, kind, order.order_id) for kind in kinds)


def _of_subscription(payment: Payment, around: Around) -> tuple[Class, str | None]:
    sub, id_ = around.subscription, str(payment.subscription_id)
    if sub is None:
        if payment.is_remembered or around.subscription_state == ENDED:
            return Class.BEFORE, None  # ended before we came
        return Class.UNEXPLAINED, "unknown_subscription_paid"
    is_after = sub.status == ENDED and None not in (payment.at, sub.ended_at) and payment.at > sub.ended_at  # type: ignore[operator]  # neither is None
    if not is_after:
        return Class.PERIOD, None
    return _seen(around.findings, "charged_after_end", [id_], Class.AFTER_END, "after_end_unseen")


def _seen(findings: Findings, kind: str, subjects: list[str], into: Class, code: str) -> tuple[Class, str | None]:
    if any(is_open(findings, kind, one) for one in subjects):
        return into, None
    if any(is_settled(findings, kind, one) for one in subjects):
        return Class.BY_HAND, None
    return Class.UNEXPLAINED, code
