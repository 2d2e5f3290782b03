"""An old shop: orders and a subscription of long ago, shipped, and what is still open; and how a ledger is compared."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Table, select

from consumer.ledger import Database
from consumer.ledger.tables import EventRow, OutboxRow, RunRow
from consumer.plugin import Context, Event, declared, handles
from tests.access.test_rebuild import OURS, PLUGINS
from tests.support.desk import Desk
from tests.support.handling.live import Live
from tests.support.handling.projections import observed, said, unreadable

EVENTS: Table = EventRow.__table__
RUNS: Table = RunRow.__table__
OUTBOX: Table = OutboxRow.__table__
ORDERS = 5
BROKEN = "A1"
SUBSCRIBED = {"id": "sub_1", "status": "ACTIVE", "customer_reference": "alice", "price_id": "p1"}


@dataclass
class OldShop:
    """`shipped`: the keys by which parcels went out; the parcel of order BROKEN never did."""

    database: Database
    desk: Desk
    live: Live
    shipped: list[str] = field(default_factory=list)

    async def lives(self) -> None:
        """Orders are registered, paid and shipped; one is held; a subscription is read three times, days apart."""
        for number in range(ORDERS):
            name = f"A{number}"
            await self.live.register(f"s{number}", order_id=name, customer="alice", expected_amount="9")
            await self.live.arrive(said("order.paid", f"evt_{number}", order_id=name, amount="9"))
            await self.live.arrive(
                observed(f"order:{name}", 10 + number, {"status": "PAID", "order_id": name, "amount": "9"})
            )
        await self.live.arrive(said("order.paid", "evt_held", order_id="H1", amount="9"))
        await self.live.arrive(unreadable("order:H1", 50))
        for version in (100, 101, 102):
            await self.live.arrive(observed("subscription:sub_1", version, SUBSCRIBED, at=self.live.clock.now()))
            await self.live.pass_time(3 * 86400)
        self.live.clock.advance(100 * 86400)

    async def bodies(self) -> dict[str, bytes]:
        """Event id to what the ledger has of its body."""
        return {row["id"]: row["raw"] for row in await self.rows(EVENTS)}

    async def rows(self, table: Table) -> list[dict[str, Any]]:
        """All rows of a table, in the order of its key."""
        return await rows(self.database, table)

    async def decisions(self) -> dict[str, list[dict[str, Any]]]:
        """What the built-in plugins know."""
        return await decisions(self.database)


async def rows(database: Database, table: Table) -> list[dict[str, Any]]:
    async with database.reading() as session:
        found = await session.execute(select(table).order_by(*table.primary_key.columns))
        return [dict(row) for row in found.mappings()]


async def decisions(database: Database) -> dict[str, list[dict[str, Any]]]:
    return {table.name: await rows(database, table) for table in OURS}


@asynccontextmanager
async def opened(database: Database, url: str) -> AsyncIterator[OldShop]:
    """The shop on a ledger, with everything that happened long ago."""
    shipped: list[str] = []

    @handles("fulfilment.requested", name="shop:ship", attempts=1)
    async def ship(event: Event, ctx: Context) -> None:
        if event.order_id == BROKEN:
            raise ValueError("no address")
        shipped.append(ctx.idempotency_key)

    handler = declared(ship)
    assert handler is not None
    live = Live(database, PLUGINS, application="default", more=[handler])
    shop = OldShop(database, Desk({"CONSUMER_DATABASE_URL": url}), live, shipped)
    try:
        await shop.lives()
        yield shop
    finally:
        await live.close()
