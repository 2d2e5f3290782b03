"""Shop: handlers of a merchant. What they do reaches the world outside, whatever becomes of the process afterwards."""

from __future__ import annotations

from zlib import crc32

from consumer.plugin import Context, Event, handles
from tests.simulation.acts import current


@handles("fulfilment.requested", name="shop:ship", first_wait_s=0.2)
async def ship(event: Event, ctx: Context) -> None:
    """One parcel for an order."""
    await current().act("ship", event, ctx)


@handles("access.granted", "access.revoked", name="shop:door", first_wait_s=0.2)
async def door(event: Event, ctx: Context) -> None:
    """A door is opened or closed for a customer."""
    await current().act("door", event, ctx)


@handles("order.*", name="shop:note", first_wait_s=0.2)
async def note(event: Event, ctx: Context) -> None:
    """Everything that is said of an order, in its order."""
    await current().act("note", event, ctx)


@handles("order.paid", transactional=True, name="shop:count", first_wait_s=0.2)
async def count(event: Event, ctx: Context) -> None:
    """A projection that emits; of every second event it fails at first, and is for the dispatcher to do."""
    current().stumble(1.0 if ctx.attempt == 1 and crc32(event.id.encode()) % 2 else 0.0)
    ctx.emit("parcel.counted", event.key, {"order": event.order_id}, once="order")


@handles("parcel.counted", name="shop:tell", first_wait_s=0.2)
async def tell(event: Event, ctx: Context) -> None:
    """What came of the projection's own event."""
    await current().act("tell", event, ctx)
