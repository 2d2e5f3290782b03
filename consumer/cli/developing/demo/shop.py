"""The demo's merchant: a plugin as a merchant's team would write it. It ships what was paid, and writes it down."""

from __future__ import annotations

from collections import Counter

from consumer.plugin import Context, Event, handles

FLAKY = "flaky"


class Book:
    """What the merchant's systems were told, by idempotency key: each key counts once, as a real system would."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.shipped: dict[str, str] = {}
        self.granted: list[str] = []
        self.revoked: list[str] = []
        self.refusals: Counter[str] = Counter()

    def ship(self, key: str, order_id: str) -> None:
        """The warehouse is asked to ship."""
        self.calls[order_id] += 1
        self.shipped[key] = order_id

    def shipments(self, order_id: str) -> int:
        """How many parcels left for an order."""
        return sum(1 for shipped in self.shipped.values() if shipped == order_id)


book = Book()


@handles("fulfilment.requested", name="demo:ship", first_wait_s=0.1, wait_factor=1.5)
async def ship(event: Event, ctx: Context) -> None:
    """Ship the order; the warehouse is out of reach twice for orders that say so."""
    order_id = event.order_id or ""
    if order_id.startswith(FLAKY) and book.refusals[order_id] < 2:
        book.refusals[order_id] += 1
        raise ConnectionError("the warehouse does not answer")
    book.ship(ctx.idempotency_key, order_id)


@handles("access.granted", "access.revoked", name="demo:access")
async def tell_access(event: Event, ctx: Context) -> None:  # noqa: ARG001 - what every handler takes
    """Tell the merchant's login system."""
    told = book.granted if event.type == "access.granted" else book.revoked
    told.append(event.customer or "")
