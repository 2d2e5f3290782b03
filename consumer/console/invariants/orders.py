"""Orders: where one paid order stands, and what of it cannot be. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from consumer.console.invariants.report import Class
from consumer.console.invariants.service import Seen
from consumer.ledger.handling.requests import GIVEN_UP, Request
from consumer.ledger.reading.observation import PAID, status_of
from consumer.ledger.tables import RunStatus
from handlers.fulfilment.order import FINDING_OF_HOLD, Hold, Order

ASKED_MAX: Final = timedelta(minutes=15)
UNDERWAY: Final = timedelta(minutes=5)
KINDS: Final = (
    "paid_unmatched", "paid_unconfirmed", "amount_mismatch", "unreadable_order", "duplicate_payment", "orphan_payment",
    "disagreement", "paid_unfulfillable",
)  # fmt: skip
SYSTEM: Final = "system"
DONE: Final = frozenset({RunStatus.SUCCEEDED, RunStatus.SKIPPED})

Findings = Mapping[tuple[str, str], Mapping[str, Any]]


def is_seen(findings: Findings, kind: str, subject: str) -> bool:
    """Whether an operator sees it, or has settled it."""
    return is_open(findings, kind, subject) or is_settled(findings, kind, subject)


def is_open(findings: Findings, kind: str, subject: str) -> bool:
    """Whether it waits for an operator."""
    return (found := findings.get((kind, subject))) is not None and found["closed_at"] is None


def is_settled(findings: Findings, kind: str, subject: str) -> bool:
    """Whether an operator closed it: money given back by hand, or goodwill."""
    found = findings.get((kind, subject))
    return found is not None and found["closed_at"] is not None and found["closed_by"] != SYSTEM


@dataclass(frozen=True, kw_only=True)
class BookedOrder:
    """An order with all that the books say of it. `others`: further requests of its fulfilment."""

    order_id: str
    order: Order
    request: Request | None = None
    others: Sequence[str] = ()
    findings: Findings = field(default_factory=dict)
    is_lapsed: bool = False


def class_of(one: BookedOrder) -> Class:
    """What the money of a paid order is for."""
    order = one.order
    if order.hold is not None:
        return Class.HELD
    if order.requested_at is None:
        if order.unfulfillable_at is None:
            return Class.UNEXPLAINED
        return Class.BY_HAND if is_settled(one.findings, "paid_unfulfillable", one.order_id) else Class.UNFULFILLABLE
    states = one.request.states if one.request else set()
    if one.request is not None and one.request.is_history and states <= {RunStatus.SKIPPED}:
        return Class.BEFORE
    if states - {RunStatus.SKIPPED} == {RunStatus.SUCCEEDED}:
        return Class.LATE if one.is_lapsed else Class.FULFILLED
    if order.unfulfillable_at is not None:
        return Class.BY_HAND if is_settled(one.findings, "paid_unfulfillable", one.order_id) else Class.UNFULFILLABLE
    if states == {RunStatus.SKIPPED} or (GIVEN_UP in states and states <= {*DONE, GIVEN_UP}):
        return Class.GIVEN_UP  # also where another handler did its part: a mail that went out ships nothing
    return Class.DUE


def problems_of(one: BookedOrder, now: datetime) -> list[str]:
    """The codes of what cannot be (see `cures`)."""
    order, found = one.order, list[str]()
    if order.paid_at is None:
        found += ["requested_unpaid"] * (order.requested_at is not None)
    elif order.hold is not None:
        found += _of_hold(one, now)
    elif order.requested_at is None and order.unfulfillable_at is None:
        found.append("paid_not_requested")
    if order.unfulfillable_at is not None and not is_seen(one.findings, "paid_unfulfillable", one.order_id):
        found.append("unfulfillable_unseen")
    if one.others:
        found.append("requested_twice")
    if order.requested_at is None:
        is_done = one.request is not None and RunStatus.SUCCEEDED in one.request.runs.values()
        return found + ["fulfilled_unrequested"] * is_done
    if order.paid_at is not None and order.unfulfillable_at is None:
        found += _of_request(one.request, order.requested_at, now)
    return found


def same_at_service(page: Sequence[Mapping[str, Any]], requested: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Of these orders, those that were requested and are one with another that was: each with the others. `requested`:
    the service's order id to the requested orders that have it."""
    mine = {row["order_id"]: requested.get(row["service_order_id"], ()) for row in page}
    return {
        one: [other for other in those if other != one]
        for one, those in mine.items()
        if len(those) > 1 and one in those
    }


def disagreement(seen: Seen, row: Mapping[str, Any] | None, findings: Findings) -> str | None:
    """The code of what cannot be where the service and the books (`row`) differ about whether an order is paid. What
    was remembered as paid before the consumer came is in no book."""
    is_booked = row is not None and row["paid_at"] is not None
    if seen.status == PAID and not is_booked:
        remembered = seen.observed if not seen.is_recorded else None
        is_history = remembered is not None and status_of(remembered.state) == PAID
        return None if is_history else "paid_not_taken"
    if seen.status in ("", PAID) or row is None or not is_booked:
        return None
    is_by_hand = row["proof_type"] == "fulfilment.marked_paid"
    is_older = seen.observed is not None and row["observed_version"] > seen.observed.version
    is_known = is_by_hand or is_older or is_seen(findings, "disagreement", seen.object_id)
    return None if is_known else "paid_here_only"


def _of_hold(one: BookedOrder, now: datetime) -> list[str]:
    order = one.order
    if order.hold is Hold.ASKED:
        is_late = order.paid_at is not None and now - order.paid_at > ASKED_MAX
        return ["asked_too_long"] * is_late
    return [] if is_seen(one.findings, FINDING_OF_HOLD[order.hold], one.order_id) else ["hold_unseen"]


def _of_request(request: Request | None, requested_at: datetime, now: datetime) -> list[str]:
    is_ahead = requested_at - now >= UNDERWAY  # a clock was ahead
    if request is None or (request.arrived_at is None and request.is_sent and not request.runs):
        is_underway = now - requested_at < UNDERWAY and not is_ahead
        return [] if is_underway else ["request_lost"]
    if RunStatus.DEAD in request.states:
        return ["fulfilment_dead"]
    is_untaken = not request.runs and not request.is_history
    if is_untaken and request.arrived_at is not None:
        return ["no_handler"]
    is_waiting = is_untaken or not request.states.isdisjoint({RunStatus.RETRYING, RunStatus.PARKED})
    return ["requested_ahead"] * (is_ahead and is_waiting)
