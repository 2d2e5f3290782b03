"""An order is paid, then a plugin is installed: a plan with the handler's name takes pairs that never ran."""

from __future__ import annotations

from consumer.broker import Broker
from consumer.broker.base import Message
from consumer.ledger import Database
from consumer.plugin import Context, Event, handles
from consumer.wire import SEED, pack_event
from tests.replay.stage import Shop
from tests.support.ports import eventually
from tests.work.workshop import TOPIC, order_paid


# case: R2
async def test_pairs_that_never_ran(database: Database, broker: Broker) -> None:
    old = Shop(database, broker)
    work = old.workshop()
    await work.publish(*[order_paid(number) for number in (1, 2)])
    seeded = pack_event(order_paid("old"), plan=SEED)
    await broker.publish_many(TOPIC, [Message(key=seeded.key, value=seeded.value, headers=seeded.headers)])
    async with work.working():
        await eventually(lambda: work.count("shop:ship", "succeeded", 2))
        await eventually(lambda: work.count("shop:mail", "succeeded", 2))
    new_ones: list[str] = []

    @handles("order.paid", "parcel.requested", name="shop:thank")
    async def thank(event: Event, ctx: Context) -> None:
        assert ctx.is_replay
        new_ones.append(event.id)

    @handles("order.paid", transactional=True, name="shop:tally")
    async def tally(event: Event, ctx: Context) -> None:
        ctx.emit("order.tallied", event.key, {})

    new = Shop(database, broker, more=[thank, tally])
    work = new.workshop()
    nothing = await new.replaying().plan()
    assert nothing["runs"] == 0, "without its name nobody's history is acted on (case B30)"
    async with work.working():
        plan = await new.replaying().plan(handler="shop:thank")
        assert (plan["runs"], plan["actions"], plan["refused"]) == (4, {"start": 4}, {"seeded": 2})
        assert plan["effects"]["shop:thank"]["calls"] == 4
        assert (await new.replaying().apply(plan)).is_as_planned
        assert len(new_ones) == len(set(new_ones)) == 4
        counted = await new.replaying().plan(handler="shop:tally")
        assert counted["emits"] == {"order.tallied": 2}
        assert (await new.replaying().apply(counted)).is_as_planned
    assert new.keys == [], "the others did nothing"
