"""A merchant's plugin that writes every effect into a file, one line each, before it returns.

What reads the file sees what the outside world saw: also the effects of a process that was killed right afterwards.
"""

from __future__ import annotations

import os

import orjson

from consumer.plugin import Context, Event, handles

FILE = "CRASH_SHOP_FILE"
STEADY = "CRASH_SHOP_STEADY"
"""Set: no first try fails."""


def act(handler: str, event: Event, ctx: Context) -> None:
    """The outside act: durable at once, like a parcel that has left."""
    line = orjson.dumps({"handler": handler, "order": event.order_id, "event": event.id, "key": ctx.idempotency_key})
    file = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line + b"\n")
    finally:
        os.close(file)


def _stumbles(ctx: Context) -> bool:
    return ctx.attempt == 1 and STEADY not in os.environ


@handles("fulfilment.requested", name="shop:ship", first_wait_s=0.05)
async def ship(event: Event, ctx: Context) -> None:
    """One parcel per order."""
    act("ship", event, ctx)


@handles("order.paid", "order.noted", name="shop:log", first_wait_s=0.05)
async def log(event: Event, ctx: Context) -> None:
    """Everything said about an order, in the order it was said; every second thing only at the second try."""
    if event.id.endswith("_1") and _stumbles(ctx):
        raise RuntimeError("the first try fails")
    act("log", event, ctx)


@handles("order.paid", transactional=True, name="shop:count", first_wait_s=0.05)
async def count(event: Event, ctx: Context) -> None:
    """A projection that ingest cannot finish, so that the dispatcher has to."""
    if _stumbles(ctx):
        raise RuntimeError("the first try fails")
    ctx.emit("parcel.counted", event.key, {"order": event.order_id}, once="order")


@handles("parcel.counted", name="shop:tell", first_wait_s=0.05)
async def tell(event: Event, ctx: Context) -> None:
    """What came of the projection's own event."""
    act("tell", event, ctx)
