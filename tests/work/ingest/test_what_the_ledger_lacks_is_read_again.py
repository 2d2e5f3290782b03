"""A ledger that was set back (a restored backup, a database that failed over to an older copy) reads again what it
lacks, also under a worker that lives on; what is gone from the log holds nothing up."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import Context, Event, handles
from tests.support.ports import eventually
from tests.work.workshop import TOPIC, Workshop, order_paid


@handles("order.paid", transactional=True, name="test:fine")
async def fine(event: Event, ctx: Context) -> None:
    """Does nothing."""


async def set_back(database: Database, to: int) -> None:
    """The ledger as it was after the first `to` events, each partition as far as it had come then: nothing is there
    twice, and nothing tells the worker."""
    async with database.transaction() as session:
        for table in ("runs", "events"):
            await session.execute(text(f"DELETE FROM {table} WHERE seq > :to"), {"to": to})
        await session.execute(text("UPDATE log_positions SET next_offset = 0"))


# case: O7
@pytest.mark.parametrize("lives_on", [True, False], ids=["the worker lives on", "the worker is started anew"])
async def test_all_of_it(sqlite_ledger: Database, broker: Broker, lives_on: bool) -> None:
    shop = Workshop(sqlite_ledger, broker, [fine])
    async with shop.working():
        await shop.publish(*(order_paid(number) for number in range(20)))
        await eventually(lambda: shop.all_succeeded(20))
        if lives_on:
            await set_back(sqlite_ledger, 3)
            await shop.publish(*(order_paid(number) for number in range(20, 40)))  # some for every partition
            await eventually(lambda: shop.all_succeeded(40))
    if not lives_on:
        await set_back(sqlite_ledger, 3)
        async with shop.working():
            await eventually(lambda: shop.all_succeeded(20))


# case: B13
async def test_what_is_gone_from_the_log_holds_nothing_up(sqlite_ledger: Database, broker: Broker) -> None:
    shop = Workshop(sqlite_ledger, broker, [fine])
    async with sqlite_ledger.transaction() as session:
        for number in range(3):
            row = {"topic": TOPIC, "number": number}
            await session.execute(
                text("INSERT INTO log_positions (topic, partition, next_offset) VALUES (:topic, :number, -5)"), row
            )
    async with shop.working():
        await shop.publish(*(order_paid(number) for number in range(20)))
        await eventually(lambda: shop.all_succeeded(20))
