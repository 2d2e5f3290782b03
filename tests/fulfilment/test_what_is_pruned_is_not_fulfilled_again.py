"""The ledger's events may be pruned by an operator; what was fulfilled is remembered apart from them."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, func, select

from consumer.ledger.tables import EventRow, OutboxRow, RunRow
from tests.fulfilment.confirmed import said
from tests.support.handling.projections import Projections


async def test_a_paid_order_listed_again_after_its_rows_are_gone(orders: Projections) -> None:
    # case: B35
    paid = said("order.paid", "evt_1", id="so1", order_id="A1", amount="12.50")
    await orders.feed(paid)
    assert [one.type for one in orders.emitted] == ["fulfilment.requested"]
    orders.now += timedelta(days=180)
    async with orders.database.transaction() as session:
        for row in (EventRow, RunRow, OutboxRow):
            await session.execute(delete(row))
    await orders.feed(paid)
    async with orders.database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(EventRow)) == 1, "it is new to the ledger"
    assert [one.type for one in orders.emitted] == ["fulfilment.requested"]
