"""ctx.snapshot() in a real worker: in the batch's own transaction, and from the loop of an effect handler."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

from consumer.broker import Broker
from consumer.clock import SystemClock
from consumer.ledger import Database
from consumer.ledger.reading.observation import Observation
from consumer.plugin import Context, Event, Snapshot, handles
from consumer.work.execution.contexts import Contexts
from tests.support.ports import eventually
from tests.work.workshop import AT, Workshop, order_paid


# case: H2
async def test_both_kinds_see_what_came_with_the_same_batch(database: Database, broker: Broker) -> None:
    seen: dict[str, Snapshot | None] = {}
    threads: set[int] = set()

    @handles("order.paid", transactional=True, name="test:projects")
    async def projects(event: Event, ctx: Context) -> None:
        seen[f"projects {event.order_id}"] = await ctx.snapshot()

    @handles("order.paid", name="test:acts")
    async def acts(event: Event, ctx: Context) -> None:
        threads.add(threading.get_ident())
        seen[f"acts {event.order_id}"] = await ctx.snapshot()

    shop = Workshop(database, broker, [projects, acts], clock=SystemClock())
    shop.contexts = Contexts(shop.clock, ledger=database)
    read = Observation(
        application="default", kind="order", object_id="A-1", version=3, read_at=AT, record={"status": "PAID"}
    )
    late = replace(read, version=2, read_at=AT + timedelta(seconds=9), record={"status": "OPEN"})
    await shop.publish(read.event(), late.event(), order_paid(1, "A-1"), order_paid(2, "A-2"))
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(4))
    for who in ("projects", "acts"):
        found = seen[f"{who} A-1"]
        assert found is not None
        assert (found.version, found.status, found.read_at) == (3, "PAID", AT)
        assert seen[f"{who} A-2"] is None
    assert threads
    assert threading.get_ident() not in threads
