"""Keeps the list of sales: one row per paid order, in the transaction that marks the event as done."""

from __future__ import annotations

from consumer.plugin import Context, Event, Reject, handles
from handlers.template.tables import TemplateSale


@handles("fulfilment.requested", name="template:keep", transactional=True)
async def keep(event: Event, ctx: Context) -> None:
    """Write the sale down; whether it is there already is for its key to say, not for a look beforehand."""
    if event.order_id is None:
        raise Reject("an order without an id cannot be kept")
    # Times come from the event, not from a clock: a rebuild gives the same rows.
    sale = TemplateSale(
        application=ctx.application,
        order_id=event.order_id,
        amount=event.find("/data/amount"),
        sold_at=event.received_at,
    )
    if await ctx.insert_new(sale):
        ctx.log.info("sale_kept", order_id=event.order_id)
