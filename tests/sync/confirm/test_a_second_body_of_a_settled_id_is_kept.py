"""Confirm: another body of an event that was confirmed already is kept and counted; the same body is a repetition."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest
from sqlalchemy import func, select, update
from structlog.testing import capture_logs

from consumer.ledger import Database
from consumer.ledger.reading import hints, quarantine
from consumer.ledger.reading.room import ROW_BYTES
from consumer.ledger.tables import EventRow, SettledHintRow
from consumer.reason import Reason
from consumer.sync.confirm.hints import HintConsumer
from consumer.sync.confirm.policy import PRUNE_EVERY_S
from tests.sync.confirming import stages
from tests.sync.conftest import DELIVERIES, World, counted_by, delivery

EVENT = "evt_000001"


def body(amount: str = "10.00", kind: str = "order.paid", **more: str) -> bytes:
    return orjson.dumps({"id": EVENT, "type": kind, "data": {"object": {"id": "ord_1", "amount": amount, **more}}})


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

    async def again(self) -> None:
        """What had to wait is looked at."""
        self.world.clock.advance(hints.AGAIN.total_seconds())
        await self.confirm.once()

    async def kept(self) -> list[bytes]:
        async with self.world.database.reading() as session:
            kept = await quarantine.newest(session, reason=Reason.OTHER_BODY, limit=10_000)
            rows = [await quarantine.get(session, one.id) for one in kept]
        return [row.raw for row in rows if row is not None]

    async def rows(self) -> tuple[int, int]:
        """Hints that wait, and those that are remembered."""
        async with self.world.database.reading() as session:
            remembered = await session.scalar(select(func.count()).select_from(SettledHintRow))
            return await hints.count(session), int(remembered or 0)

    def counted(self) -> float:
        return counted_by(self.world.metrics, "quarantined", "default", Reason.OTHER_BODY)

    def mismatches(self) -> float:
        return counted_by(self.world.metrics, "mismatches", "default")


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


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("amount", {"amount": "99.00"}),
        ("order_id", {"order_id": "A-2"}),
        ("customer", {"customer_reference": "bob"}),
        ("object_id", {"id": "ord_2"}),
    ],
)
@pytest.mark.parametrize("turn", [0, 1, 2])
async def test_each_body_is_compared_with_the_record_whichever_came_first(
    shop: Shop, name: str, stated: dict[str, str], turn: int
) -> None:
    """Two that wait together: the service's record tells which of them is not its word. Each is told of once."""
    # case: I16, U28
    true = {"amount": "10.000", "order_id": "A-1", "customer_reference": "alice"}
    shop.world.service.event(1, id="ord_1", **true)
    right, wrong = body(**true), body(**true | stated)
    with capture_logs() as lines:
        match turn:
            case 0:
                await shop.hear(right, wrong)
            case 1:
                await shop.hear(wrong, right)
            case _:
                await shop.hear(right)
                await shop.hear(wrong)
        await shop.world.work()
        await shop.again()
    differ = [line for line in lines if line["event"] == "delivery_differs_from_record"]
    assert [line["differs"] for line in differ] == [name]
    assert shop.mismatches() == 1
    assert wrong in await shop.kept()
    await shop.hear(right)
    await shop.again()
    assert shop.mismatches() == 1, "it was compared"


async def test_a_record_whose_body_is_archived_is_compared_by_what_is_known_of_it(shop: Shop) -> None:
    # case: I16
    await shop.hear(body())
    await shop.world.work()
    async with shop.world.database.transaction() as session:
        await session.execute(update(EventRow).values(raw=b""))
    await shop.hear(body("99.00"))
    assert (await shop.kept(), shop.mismatches()) == ([body("99.00")], 0)
    await shop.hear(body(id="ord_2"))
    assert shop.mismatches() == 1
    assert await shop.rows() == (0, 1)


@pytest.mark.parametrize("amount", ["sNaN", "NaN", "Infinity", "", "ten", "1" * 100_000, "1e999999999", "\ud800"])
async def test_an_amount_that_is_none_holds_up_nobody(shop: Shop, amount: str) -> None:
    # case: I16, U1
    odd = json.dumps({"id": EVENT, "type": "order.paid", "data": {"object": {"id": "ord_1", "amount": amount}}})
    await shop.hear(odd.encode(), body())
    assert (await shop.rows())[0] == 0
    assert shop.mismatches() == amount.startswith("1"), "what is no number contradicts none"


async def test_another_body_waits_for_the_record_for_as_long_as_it_takes(shop: Shop) -> None:
    # case: I16
    await shop.hear(body(), body("99.00"))
    await shop.hear(body("98.00"))
    for _ in range(3):
        await shop.again()
        assert (await shop.rows(), shop.mismatches()) == ((1, 1), 1)
    await shop.world.work()
    await shop.again()
    assert (await shop.rows(), shop.mismatches()) == ((0, 1), 2)
    assert shop.world.service.calls.total() == 1, "one read, whatever comes"


async def test_what_changes_while_an_object_lives_and_what_is_left_out_is_no_mismatch(shop: Shop) -> None:
    # case: I16
    shop.world.service.event(1, id="ord_1", amount="10.00", status="PENDING", order_id="A-1")
    await shop.hear(body(status="PAID"), body(amount="10"), orjson.dumps({"id": EVENT, "type": "order.paid"}))
    assert (len(await shop.kept()), shop.counted(), shop.mismatches()) == (2, 2, 0)


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
