"""Reads of orders, many at once: what all of them are asked of the tables is asked by one statement each. What follows
is what follows of each read singly: two of one order, or of one order of the service, are not taken together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from sqlalchemy import bindparam, delete, literal, select, union

from consumer.plugin import Context, Event, among_given
from handlers.findings import close_finding, open_finding
from handlers.fulfilment import rules
from handlers.fulfilment.folding import Fact, apply_all
from handlers.fulfilment.lookups import Unidentified, completed_at, proofs_by_service_id
from handlers.fulfilment.money import claim_payments, judge_proof, payments_of, waits_for_session
from handlers.fulfilment.options import Options
from handlers.fulfilment.order import PAID, Order, Proof, Reading
from handlers.fulfilment.store import Change, is_let_go, later
from handlers.fulfilment.tables import CHECKOUTS, FINDINGS, ORDERS, PAYMENTS

DISAGREEMENT_WAIT_MAX_S = 86_400.0


@dataclass(frozen=True)
class Seen:
    """One read of one order, as an event; `proof` is what it proves when it says PAID."""

    event: Event
    ctx: Context
    order_id: str
    reading: Reading
    proof: Proof


async def observe(batch: Sequence[Seen]) -> None:
    """What these reads of one application show, in their order."""
    for apart in _apart(batch):
        unidentified = await proofs_by_service_id(apart[0].ctx, _service_ids(apart))
        proofs = [unidentified.get(seen.reading.service_order_id or "") for seen in apart]
        facts = [
            Fact(
                seen.event,
                seen.ctx,
                seen.order_id,
                partial(_fact, seen, proof),
                is_history=proof is not None and proof.is_history,
            )
            for seen, proof in zip(apart, proofs, strict=True)
        ]
        changes = await apply_all(facts)
        for seen, change in zip(apart, changes, strict=True):
            if seen.reading.status == PAID:
                await judge_proof(seen.ctx, seen.event, seen.order_id, seen.proof.payment_id, change)
        newer = [
            (seen, proof, change)
            for seen, proof, change in zip(apart, proofs, changes, strict=True)
            if seen.reading.version > change.before.observed_version
        ]
        unclaimed = await _unclaimed([seen for seen, _, _ in newer])
        for seen, proof, change in newer:
            await _follow(seen, proof, change, unclaimed)


def _apart(batch: Sequence[Seen]) -> Iterator[Sequence[Seen]]:
    """The batch in parts in which no order comes twice, by either of its ids. Pure."""
    part: list[Seen] = []
    known: set[tuple[str, str | None]] = set()
    for seen in batch:
        ids = {("ours", seen.order_id)}
        if seen.reading.service_order_id:
            ids.add(("theirs", seen.reading.service_order_id))
        if ids & known:
            yield part
            part, known = [], set()
        part.append(seen)
        known |= ids
    if part:
        yield part


def _fact(seen: Seen, unidentified: Unidentified | None, order: Order) -> Order:
    is_history = unidentified is not None and unidentified.is_history and is_let_go(seen.ctx, seen.order_id)
    matching = None if is_history else _options(seen).matching
    known = rules.observed(order, seen.reading, seen.proof, matching)
    return known if unidentified is None else rules.paid(known, unidentified.proof, matching)


async def _follow(
    seen: Seen, unidentified: Unidentified | None, change: Change, unclaimed: frozenset[tuple[str, str]]
) -> None:
    ctx, event, order_id = seen.ctx, seen.event, seen.order_id
    service_order_id = seen.reading.service_order_id
    if change.before.is_unreadable and not change.after.is_unreadable:
        await close_finding(ctx, FINDINGS, "unreadable_order", order_id, event.received_at)
    if service_order_id:
        if unidentified is not None:
            await close_finding(ctx, FINDINGS, "paid_unidentified", service_order_id, event.received_at)
        if (_BY_SERVICE, service_order_id) in unclaimed:
            await _claim_by_service_id(ctx, event, order_id, service_order_id)
    if (_BY_SESSION, order_id) in unclaimed:
        await _claim_by_session(ctx, event, order_id)
    await _agreement(seen, change)


async def _agreement(seen: Seen, change: Change) -> None:
    """An event said paid and a read does not: shown, and read again; the order stays PAID (case F19)."""
    ctx, event, order_id, order = seen.ctx, seen.event, seen.order_id, change.after
    if seen.reading.status == PAID:
        if change.before.observed_version:  # only an earlier read can have disagreed
            await close_finding(ctx, FINDINGS, "disagreement", order_id, event.received_at)
    elif order.paid_at is not None:
        detail = {"read": seen.reading.status, "proof": order.proof_event_id}
        await open_finding(ctx, FINDINGS, "disagreement", order_id, event.received_at, detail)
        _read_again(seen, order.paid_at)
    elif (since := await completed_at(ctx, order_id)) is not None:
        # A session of it is completed, so a payment is final: the read lags, and `order.paid` may be lost (case F5).
        _read_again(seen, since)


def _read_again(seen: Seen, since: datetime) -> None:
    """After a wait that doubles, up to a day."""
    age_s = (seen.event.received_at - since).total_seconds()
    wait_s = min(max(_options(seen).disagreement_read_delay_s, age_s), DISAGREEMENT_WAIT_MAX_S)
    seen.ctx.request_read("order", seen.order_id, later(seen.event, wait_s))


def _options(seen: Seen) -> Options:
    options: Options = seen.ctx.options
    return options


def _service_ids(batch: Sequence[Seen]) -> list[str]:
    return [seen.reading.service_order_id for seen in batch if seen.reading.service_order_id]


_BY_SERVICE, _BY_SESSION = "service_order", "session"
_OURS = payments_of(bindparam("b_application"))
_UNCLAIMED = union(
    select(literal(_BY_SERVICE), PAYMENTS.c.service_order_id).where(
        _OURS, among_given(PAYMENTS.c.service_order_id, "b_service_ids"), PAYMENTS.c.order_id.is_(None)
    ),
    select(literal(_BY_SERVICE), PAYMENTS.c.order_id).where(_OURS, among_given(PAYMENTS.c.order_id, "b_service_ids")),
    select(literal(_BY_SESSION), CHECKOUTS.c.order_id)
    .join(PAYMENTS, waits_for_session(CHECKOUTS.c.session_id) & payments_of(CHECKOUTS.c.application))
    .where(
        CHECKOUTS.c.application.concat("") == bindparam("b_application"),
        among_given(CHECKOUTS.c.order_id, "b_order_ids"),
    ),
)
_TOLD = (
    "paid_at", "registered_at", "observed_status", "expired_at", "unfulfillable_at", "service_order_id", "customer",
)  # fmt: skip
_INVENTED = (
    delete(ORDERS)
    .where(
        ORDERS.c.application == bindparam("b_application"),
        ORDERS.c.order_id == bindparam("b_order_id"),
        *(ORDERS.c[name].is_(None) for name in _TOLD),
    )
    .returning(ORDERS.c.order_id)
)
"""Takes out an order of which nothing was ever told but that payments name it."""


async def _unclaimed(batch: Sequence[Seen]) -> frozenset[tuple[str, str]]:
    """Of the orders that these reads show, the service's ids of those with payments that named nothing else, or named
    them as if they were the merchant's (case U10), and ours of those with payments that named a session of theirs
    alone; as good as none."""
    if not batch:
        return frozenset()
    given = {
        "b_application": batch[0].ctx.application,
        "b_service_ids": _service_ids(batch),
        "b_order_ids": [seen.order_id for seen in batch],
    }
    found = await batch[0].ctx.session.execute(_UNCLAIMED, given)
    return frozenset((by, order_id) for by, order_id in found)


async def _claim_by_service_id(ctx: Context, event: Event, order_id: str, service_order_id: str) -> None:
    """Payments that named only the service's order id belong to this order; also those that named it as the merchant's,
    unless some order has been told of by that id."""
    named = (PAYMENTS.c.service_order_id == service_order_id) & PAYMENTS.c.order_id.is_(None)
    given = {"b_application": ctx.application, "b_order_id": service_order_id}
    if service_order_id != order_id and (await ctx.session.execute(_INVENTED, given)).first() is not None:
        named |= PAYMENTS.c.order_id == service_order_id
        for kind in ("orphan_payment", "duplicate_payment"):
            await close_finding(ctx, FINDINGS, kind, service_order_id, event.received_at)
    await claim_payments(ctx, event, order_id, named, service_order_id=service_order_id)


async def _claim_by_session(ctx: Context, event: Event, order_id: str) -> None:
    """Payments that named only a session of this order, before there was such an order, belong to it."""
    its = select(CHECKOUTS.c.session_id).where(
        CHECKOUTS.c.application == ctx.application, CHECKOUTS.c.order_id == order_id
    )
    await claim_payments(ctx, event, order_id, PAYMENTS.c.session_id.in_(its) & PAYMENTS.c.order_id.is_(None))
