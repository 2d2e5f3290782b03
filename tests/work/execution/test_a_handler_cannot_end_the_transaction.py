"""A transactional handler that commits, rolls back or closes fails alone: no write is kept by half, none is lost."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import Context, Event, handles
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

EVENTS = 5


@handles("order.paid", transactional=True, name="test:emits")
async def emits(event: Event, ctx: Context) -> None:
    """What the built-in fulfilment does: a mark and a derived event that belong together."""
    ctx.emit("parcel.wanted", key=event.key, data={"order": event.order_id})


# case: G2, H4
@pytest.mark.parametrize("way", ["commit", "rollback", "close", "reset", "invalidate"])
async def test_whoever_shares_the_transaction_keeps_all_of_it(
    way: str, sqlite_ledger: Database, broker: Broker
) -> None:
    @handles("order.paid", transactional=True, attempts=1, name="test:ends")
    async def ends(event: Event, ctx: Context) -> None:
        await getattr(ctx.session, way)()

    @handles("parcel.wanted", name="test:packs")
    async def packs(event: Event, ctx: Context) -> None:
        packed.add(event.key)

    packed: set[str] = set()
    shop = Workshop(sqlite_ledger, broker, [ends, emits, packs])
    await shop.publish(*[order_paid(number) for number in range(EVENTS)])
    async with shop.working():
        await eventually(lambda: len(packed) == EVENTS, within_s=30)
        await eventually(lambda: shop.count("ends", "dead", EVENTS), within_s=30)
    assert await shop.statuses("emits") == ["succeeded"] * EVENTS


async def test_a_savepoint_of_its_own_is_the_handlers(sqlite_ledger: Database, broker: Broker) -> None:
    @handles("order.paid", transactional=True, name="test:nests")
    async def nests(event: Event, ctx: Context) -> None:
        async with ctx.session.begin_nested() as mine:
            await ctx.session.execute(text("UPDATE events SET type = 'lost'"))
            await mine.rollback()
        async with ctx.session.begin_nested():
            assert (await ctx.session.execute(text("SELECT count(*) FROM events"))).scalar_one() >= 1

    shop = Workshop(sqlite_ledger, broker, [nests])
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(1), within_s=30)
    async with sqlite_ledger.reading() as session:
        assert (await session.execute(text("SELECT type FROM events"))).scalars().all() == ["order.paid"]
