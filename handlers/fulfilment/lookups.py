"""Lookups: what an event's handler asks of the plugin's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from sqlalchemy import bindparam, func, select

from consumer.plugin import Context, among_given
from handlers.fulfilment.order import Proof
from handlers.fulfilment.tables import CHECKOUTS, FINDINGS, ORDERS, PAYMENTS


async def completed_at(ctx: Context, order_id: str) -> datetime | None:
    """When the service first said that a session of this order is completed; None while it has not."""
    of_order = (CHECKOUTS.c.application == ctx.application) & (CHECKOUTS.c.order_id == order_id)
    found: datetime | None = (
        await ctx.session.execute(select(func.min(CHECKOUTS.c.completed_at)).where(of_order))
    ).scalar()
    return found


async def is_paid(ctx: Context, order_id: str) -> bool:
    """Whether there was a proof."""
    one = (ORDERS.c.application == ctx.application) & (ORDERS.c.order_id == order_id)
    return (await ctx.session.execute(select(ORDERS.c.paid_at).where(one))).scalar() is not None


async def order_of_service_id(ctx: Context, service_order_id: str | None) -> str | None:
    """The merchant's order id behind the service's own, if a read or an event has shown both."""
    if service_order_id is None:
        return None
    one = (ORDERS.c.application == ctx.application) & (ORDERS.c.service_order_id == service_order_id)
    found: str | None = (await ctx.session.execute(select(ORDERS.c.order_id).where(one).limit(1))).scalar()
    return found


async def order_named(
    ctx: Context, payment_id: str, order_id: str | None, service_order_id: str | None
) -> tuple[str | None, str | None]:
    """Which order a payment is of: its id and the service's, from what the record names by either. What was said before
    of this payment stays. Which of the two `order_id` holds there is not shown (case U10): one that is nobody's order,
    and some order's at the service, is that one's."""
    this = (PAYMENTS.c.application == ctx.application) & (PAYMENTS.c.payment_id == payment_id)
    said_before: str | None = (await ctx.session.execute(select(PAYMENTS.c.order_id).where(this))).scalar()
    if said_before is not None:
        return said_before, service_order_id
    if order_id is None:
        return await order_of_service_id(ctx, service_order_id), service_order_id
    one = (ORDERS.c.application == ctx.application) & (ORDERS.c.order_id == order_id)
    is_known = (await ctx.session.execute(select(ORDERS.c.order_id).where(one))).first() is not None
    found = None if is_known else await order_of_service_id(ctx, order_id)
    return (order_id, service_order_id) if found is None else (found, order_id)


@dataclass(frozen=True, kw_only=True)
class SessionKnown:
    """What is known of a checkout: the order id that its events or the merchant said, whether there is such an order,
    and its mode. A subscription's session has an order id, too, and no order comes of it (case F22)."""

    order_id: str | None = None
    is_known: bool = False
    mode: str | None = None

    @property
    def is_subscriptions(self) -> bool:
        """Whether it was said to be a subscription's."""
        return self.mode == "subscription"


async def session_known(ctx: Context, session_id: str) -> SessionKnown:
    """What is known of this checkout."""
    its = (ORDERS.c.application == CHECKOUTS.c.application) & (ORDERS.c.order_id == CHECKOUTS.c.order_id)
    one = (CHECKOUTS.c.application == ctx.application) & (CHECKOUTS.c.session_id == session_id)
    wanted = select(CHECKOUTS.c.order_id, ORDERS.c.order_id.is_not(None), CHECKOUTS.c.mode)
    row = (await ctx.session.execute(wanted.select_from(CHECKOUTS.outerjoin(ORDERS, its)).where(one))).first()
    return SessionKnown() if row is None else SessionKnown(order_id=row[0], is_known=bool(row[1]), mode=row[2])


PAID_BEFORE: Final = "paid_before"
"""The kind of a finding that is closed from its beginning: a seed's `order.paid` named its order by the service's id
alone. `paid_unidentified` is that of another's, which waits for a read."""
_UNIDENTIFIED = select(FINDINGS.c.kind, FINDINGS.c.subject, FINDINGS.c.detail, FINDINGS.c.opened_at).where(
    FINDINGS.c.application == bindparam("b_application"),
    FINDINGS.c.kind.in_(("paid_unidentified", PAID_BEFORE)),
    among_given(FINDINGS.c.subject, "b_service_ids"),
    FINDINGS.c.closed_at.is_(None) | (FINDINGS.c.kind == PAID_BEFORE),
)


class Unidentified(NamedTuple):
    """An `order.paid` that named its order by the service's id alone; `is_history`: a seed brought it."""

    proof: Proof
    is_history: bool


async def proofs_by_service_id(ctx: Context, service_order_ids: Sequence[str]) -> dict[str, Unidentified]:
    """The `order.paid` that named its order by the service's id alone, by that id. A read shows which it is, even one
    that lags and does not say PAID yet (case F19). Where there are two, what a seed told counts."""
    if not service_order_ids:
        return {}
    given = {"b_application": ctx.application, "b_service_ids": service_order_ids}
    found = await ctx.session.execute(_UNIDENTIFIED, given)
    proofs: dict[str, Unidentified] = {}
    for row in found:
        event_id = str(row.detail.get("event_id"))
        proof = Proof(event_id=event_id, type="order.paid", at=row.opened_at, by_event=True)
        if row.kind == PAID_BEFORE or row.subject not in proofs:
            proofs[row.subject] = Unidentified(proof, is_history=row.kind == PAID_BEFORE)
    return proofs
