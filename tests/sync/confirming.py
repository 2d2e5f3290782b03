"""The stages that prove webhooks, and webhooks that wait for it."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from consumer.ledger.reading import hints
from consumer.sync.backfill.catch_up import CatchUp
from consumer.sync.backfill.stage import Backfill
from consumer.sync.confirm.stage import Confirm
from consumer.sync.publisher import EventPublisher
from tests.sync.conftest import World, delivery


def stages(world: World, publisher: EventPublisher | None = None) -> tuple[Confirm, Backfill]:
    """Confirm, and the backfill whose walks it uses."""
    settlement = world.settlement(publisher)
    backfill = Backfill(world.app, settlement)
    confirm = Confirm(
        world.app,
        settlement,
        catch_up=CatchUp(backfill),
    )
    return confirm, backfill


async def hint(world: World, ids: Sequence[str]) -> None:
    """A webhook of each waits to be proved."""
    deliveries = [
        delivery(orjson.dumps({"id": event_id, "type": "order.paid"}), number, event_id=event_id)
        for number, event_id in enumerate(ids)
    ]
    async with world.database.transaction() as session:
        await hints.keep(session, deliveries, world.clock.now())
