"""Money: what the payments of one order say when all of them are looked at (cases F28, F29, F38)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, func, select, update

from consumer.plugin import Context, Event
from handlers.findings import close_finding, open_finding
from handlers.fulfilment import rules
from handlers.fulfilment.order import decimal
from handlers.fulfilment.store import Change, apply
from handlers.fulfilment.tables import FINDINGS, PAYMENTS, FulfilmentOrder, FulfilmentPayment


async def judge_payments(ctx: Context, event: Event, order_id: str, *heard_of: FulfilmentPayment) -> None:
    """All SUCCEEDED payments of one order, those `heard_of` now and the one it was paid by included, under its lock,
    which is taken before any payment's."""
    key: dict[str, Any] = {"application": ctx.application, "order_id": order_id}
    await ctx.insert_new(FulfilmentOrder(**key))
    order = await ctx.locked(FulfilmentOrder, **key)
    for payment in heard_of:
        await keep_payment(ctx, event, payment)
    wanted = select(PAYMENTS.c.payment_id, PAYMENTS.c.amount).where(_of_order(ctx, order_id))
    found: dict[str, str | None] = {row.payment_id: row.amount for row in await ctx.session.execute(wanted)}
    if order is not None and order["payment_id"] is not None:
        found.setdefault(order["payment_id"], None)
    if not found:
        return  # meanwhile those were said to be of another order, whose they stay
    if len(found) > 1:
        await _show(ctx, event, "duplicate_payment", order_id, found)
    if order is None or order["paid_at"] is None:
        await _show(ctx, event, "orphan_payment", order_id, found)
        ctx.request_read("order", order_id)
    most = largest(found.values())
    if order is not None and order["paid_amount"] != most:
        await apply(ctx, event, order_id, lambda one: rules.came_to(one, most), invents=False)


def largest(amounts: Collection[str | None]) -> str | None:
    """The largest of these amounts, None where one of them cannot be compared. Pure."""
    known = [(value, amount) for amount in amounts if (value := decimal(amount)) is not None]
    return max(known)[1] if len(known) == len(amounts) else None


async def _show(ctx: Context, event: Event, kind: str, order_id: str, payments: Collection[str]) -> None:
    """What an operator closed was about the payments that he saw: one that came since is another occasion."""
    key = (FINDINGS.c.application == ctx.application) & (FINDINGS.c.kind == kind) & (FINDINGS.c.subject == order_id)
    known = (await ctx.session.execute(select(FINDINGS.c.detail).where(key))).scalar() or {}
    is_news = not set(payments) <= set(known.get("payments", ()))
    detail = {"payments": sorted(payments)}
    await open_finding(ctx, FINDINGS, kind, order_id, event.received_at, detail, anew=is_news)


async def judge_proof(ctx: Context, event: Event, order_id: str, payment_id: str | None, change: Change) -> None:
    """What a proof of payment says of the money, after it has changed the order so: a second payment is found when its
    event or its read comes, whichever of the two comes first (case F29).

    Assumed, since the service shows no such field: the payment that an order's event or record names is one that paid
    it, by the id that the list of payments has. Of a proof that names none nothing is concluded.
    """
    first = change.after.payment_id
    if payment_id is None or first is None:
        return
    if payment_id != first:
        of_order: dict[str, Any] = {"application": ctx.application, "order_id": order_id, "seen_at": event.received_at}
        both = [FulfilmentPayment(payment_id=one, **of_order) for one in (first, payment_id)]
        await judge_payments(ctx, event, order_id, *both)
    elif change.became("payment_id") and (change.may_be_orphan or change.before.paid_at is not None):
        others = select(PAYMENTS.c.payment_id).where(_of_order(ctx, order_id), PAYMENTS.c.payment_id != payment_id)
        if (await ctx.session.execute(others.limit(1))).first() is not None:
            await judge_payments(ctx, event, order_id)


async def keep_payment(ctx: Context, event: Event, payment: FulfilmentPayment) -> str | None:
    """Store what is said of a payment; what was said of it before stays. Returns the order that it is of, as far as
    anybody said."""
    if await ctx.insert_new(payment):
        return payment.order_id
    one = (PAYMENTS.c.application == ctx.application) & (PAYMENTS.c.payment_id == payment.payment_id)
    names = ("order_id", "service_order_id", "session_id", "amount")
    known = {name: func.coalesce(PAYMENTS.c[name], getattr(payment, name)) for name in names}
    done = await ctx.session.execute(update(PAYMENTS).where(one).values(known).returning(PAYMENTS.c.order_id))
    order_id: str | None = done.scalar()
    if order_id is not None:
        await close_finding(ctx, FINDINGS, "orphan_payment", payment.payment_id, event.received_at)
    return order_id


async def claim_payments(ctx: Context, event: Event, order_id: str, named: ColumnElement[bool], **more: str) -> None:
    """The payments that are `named` so are of this order; `more`: what else is known of them by that. Its lock is taken
    before theirs."""
    await ctx.locked(FulfilmentOrder, application=ctx.application, order_id=order_id)
    claimed = await ctx.session.execute(
        update(PAYMENTS)
        .where(payments_of(ctx.application), named)
        .values(order_id=order_id, **more)
        .returning(PAYMENTS.c.payment_id)
    )
    payments = claimed.scalars().all()
    for payment_id in payments:
        await close_finding(ctx, FINDINGS, "orphan_payment", payment_id, event.received_at)
    if payments:
        await judge_payments(ctx, event, order_id)


def payments_of(application: ColumnElement[str] | str) -> ColumnElement[bool]:
    """The payments of an application, not by an index: the primary key begins with it, and would be read for all."""
    return PAYMENTS.c.application.concat("") == application


def waits_for_session(session_id: ColumnElement[str] | str) -> ColumnElement[bool]:
    """The payments that named this session alone, while nobody knew whose it is."""
    return (PAYMENTS.c.session_id == session_id) & PAYMENTS.c.order_id.is_(None)


def _of_order(ctx: Context, order_id: str) -> Any:
    return (PAYMENTS.c.application == ctx.application) & (PAYMENTS.c.order_id == order_id)
