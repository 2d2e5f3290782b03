"""Confirm: another body of an event that was confirmed already is kept and counted; the same body is a repetition."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest
from sqlalchemy import func, select

from consumer.ledger import Database
from consumer.ledger.reading import hints, quarantine
from consumer.ledger.reading.room import ROW_BYTES
from consumer.ledger.tables import SettledHintRow
from consumer.reason import Reason
from consumer.sync.confirm.hints import PRUNE_EVERY_S, HintConsumer
from tests.sync.confirming import stages
from tests.sync.conftest import DELIVERIES, World, counted_by, delivery

EVENT = "evt_000001"


def body(amount: str = "10.00", kind: str = "order.paid") -> bytes:
    return orjson.dumps({"id": EVENT, "type": kind, "data": {"object": {"id": "ord_1", "amount": amount}}})


class Shop:
    """Deliveries from the topic to the ledger, and from there to the service's record."""

    def __init__(self, world: World, *, max_bytes: int = 2**20) -> None:
        self.world = world
        self.intake = HintConsumer(
            world.broker, world.database, topic=DELIVERIES, applications={"default"}, clock=world.clock,
            metrics=world.metrics, max_bytes=max_bytes,
        )  # fmt: skip
        self.confirm, self.backfill = stages(world)
        self._number = 0

    async def hear(self, *bodies: bytes) -> None:
        """They arrive, and are worked off."""
        numbers = range(self._number, self._number + len(bodies))
        self._number += len(bodies)
        await self.world.deliver(*(delivery(raw, n, event_id=EVENT) for n, raw in zip(numbers, bodies, strict=True)))
        left = len(bodies)
        while left:
            left -= await self.intake.once()
        await self.confirm.once()

    async def kept(self) -> list[bytes]:
        async with self.world.database.reading() as session:
            return [row.raw for row in await quarantine.newest(session, reason=Reason.OTHER_BODY, limit=10_000)]

    async def rows(self) -> tuple[int, int]:
        """Hints that wait, and those that are remembered."""
        async with self.world.database.reading() as session:
            remembered = await session.scalar(select(func.count()).select_from(SettledHintRow))
            return await hints.count(session), int(remembered or 0)

    def counted(self) -> float:
        return counted_by(self.world.metrics, "quarantined", "default", Reason.OTHER_BODY)


@pytest.fixture
async def shop(world: World, database: Database) -> AsyncIterator[Shop]:
    found = Shop(replace(world, database=database))
    found.world.service.event(1, id="ord_1", amount="10.00")
    yield found
    await found.intake.close()


async def test_a_body_that_differs_in_its_amount_alone_is_kept_and_counted(shop: Shop) -> None:
    # case: I16
    await shop.hear(body())
    await shop.world.work()
    await shop.hear(body("99.00"))
    assert (await shop.kept(), shop.counted()) == ([body("99.00")], 1)
    assert await shop.rows() == (0, 1)


async def test_it_is_kept_before_the_event_is_recorded_too(shop: Shop) -> None:
    # case: I16
    await shop.hear(body())
    await shop.hear(body("99.00"))
    assert (await shop.kept(), shop.counted()) == ([body("99.00")], 1)


async def test_a_repetition_leaves_no_trace(shop: Shop) -> None:
    # case: I16, B4
    await shop.hear(body())
    await shop.world.work()
    shop.world.service.calls.clear()
    await shop.hear(body())
    await shop.hear(body("99.00"))
    await shop.hear(body())
    assert (await shop.kept(), shop.counted()) == ([body("99.00")], 1)
    assert await shop.rows() == (0, 1)
    assert shop.world.service.calls.total() == 0


async def test_the_first_webhook_of_an_event_that_a_walk_had_found_counts(shop: Shop) -> None:
    # case: I16
    record = shop.world.service.event(1, id="ord_1", amount="10.00")
    shop.world.service.lists["/v1/events"] = lambda _cursor, _limit: {"items": [record], "next_cursor": None}
    await shop.backfill.once()
    await shop.world.work()
    await shop.hear(body())
    assert (await shop.kept(), shop.counted()) == ([], 0)
    await shop.hear(body("99.00"))
    assert (await shop.kept(), shop.counted()) == ([body("99.00")], 1)


async def test_a_body_that_contradicts_the_record_is_compared_with_it_and_counted_once(shop: Shop) -> None:
    # case: I16
    await shop.hear(body())
    await shop.world.work()
    await shop.hear(body(kind="order.expired"))
    assert (await shop.kept(), shop.counted()) == ([body(kind="order.expired")], 1)
    assert counted_by(shop.world.metrics, "mismatches", "default") == 1


async def test_a_body_that_contradicts_the_record_is_not_what_later_ones_are_judged_by(shop: Shop) -> None:
    # case: I16
    await shop.hear(body(kind="order.expired"))
    await shop.world.work()
    await shop.hear(body())
    await shop.hear(body())
    assert (await shop.kept(), shop.counted()) == ([body(kind="order.expired")], 1)
    await shop.hear(body("99.00"))
    assert (await shop.kept(), shop.counted()) == ([body("99.00"), body(kind="order.expired")], 2)


async def test_a_flood_of_bodies_of_one_id_takes_a_bounded_room_and_no_read(world: World, database: Database) -> None:
    # case: I16, I15, I22
    shop = Shop(replace(world, database=database), max_bytes=200_000)
    shop.world.service.event(1, id="ord_1", amount="10.00")
    await shop.hear(body())
    await shop.world.work()
    shop.world.service.calls.clear()
    for start in range(0, 1000, 200):
        await shop.hear(*(body(f"{number}.00") for number in range(start + 100, start + 300)))
        shop.world.clock.advance(PRUNE_EVERY_S)
        await shop.hear(body())
    await shop.intake.close()
    assert shop.counted() == 1000
    assert 0 < len(await shop.kept()) * ROW_BYTES <= 200_000
    assert await shop.rows() == (0, 1)
    assert shop.world.service.calls.total() == 0
