"""One handler of an event succeeded, another died: what an operator sends again is the dead run, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import Context, Event, handles
from tests.support.desk import Desk
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid


# case: R4, H1
async def test_only_the_handler_that_failed_runs_again(sqlite_ledger: Database, broker: Broker, tmp_path: Path) -> None:
    ran: list[str] = []
    repaired = False

    @handles("order.paid", name="test:fine")
    async def fine(event: Event, ctx: Context) -> None:
        ran.append("fine")

    @handles("order.paid", attempts=1, name="test:broken")
    async def broken(event: Event, ctx: Context) -> None:
        ran.append("broken")
        if not repaired:
            raise ValueError("not yet")

    shop = Workshop(sqlite_ledger, broker, [fine, broken])
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.count("test:broken", "dead", 1))
        await eventually(lambda: shop.count("test:fine", "succeeded", 1))
        repaired = True
        await asyncio.to_thread(desk.ask, "dead", "redrive", "--event", "evt_1", "--reason", "repaired", "--yes")
        await eventually(lambda: shop.count("test:broken", "succeeded", 1))
    assert sorted(ran) == ["broken", "broken", "fine"]
