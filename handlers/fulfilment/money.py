"""Money: what the payments of one order say when all of them are looked at (cases F28, F38)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from consumer.plugin import Context, Event
from handlers.findings import open_finding
from handlers.fulfilment.tables import FINDINGS, PAYMENTS, FulfilmentOrder


async def judge_payments(ctx: Context, event: Event, order_id: str) -> None:
    """All SUCCEEDED payments of one order, under its lock."""
    key: dict[str, Any] = {"application": ctx.application, "order_id": order_id}
    await ctx.insert_new(FulfilmentOrder(**key))
    order = await ctx.locked(FulfilmentOrder, **key)
    of_order = (PAYMENTS.c.application == ctx.application) & (PAYMENTS.c.order_id == order_id)
    found = (await ctx.session.execute(select(PAYMENTS.c.payment_id).where(of_order))).scalars().all()
    detail = {"payments": sorted(found)}
    if len(found) > 1:
        await open_finding(ctx, FINDINGS, "duplicate_payment", order_id, event.received_at, detail)
    if order is None or order["paid_at"] is None:
        await open_finding(ctx, FINDINGS, "orphan_payment", order_id, event.received_at, detail)
        ctx.request_read("order", order_id)
