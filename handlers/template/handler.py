"""Ships what was paid: tells the warehouse, once per order.

`fulfilment.requested` comes once per paid order, however often and in whatever order the service sends its webhooks.
"""

from __future__ import annotations

from consumer.plugin import Context, Event, Reject, handles


@handles("fulfilment.requested", name="template:ship", attempts=8, timeout_s=30)
async def ship(event: Event, ctx: Context) -> None:
    """Tell the warehouse at `ctx.options["url"]`; until there is one, only write down what would be told."""
    if event.order_id is None:
        raise Reject("an order without an id cannot be shipped")
    url = ctx.options.get("url")
    if not url:
        ctx.log.info("would_ship", order_id=event.order_id)
        return
    # The same key on every attempt: the warehouse recognises a repetition and ships once.
    headers = {"Idempotency-Key": ctx.idempotency_key}
    async with ctx.http.post(url, json={"order_id": event.order_id}, headers=headers) as answer:
        answer.raise_for_status()
