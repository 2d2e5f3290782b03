"""Of orders whose handlers died: the plan names each effect, writes nothing, and applying it does just that, once."""

from __future__ import annotations

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import idempotency_key
from tests.replay.stage import Shop, tables
from tests.support.ports import eventually
from tests.work.workshop import order_paid


# case: R1, R2, R3, R4
async def test_the_dead_are_done_again_and_nothing_else(database: Database, broker: Broker) -> None:
    shop = Shop(database, broker, broken={"mail", "book"})
    work = shop.workshop()
    await work.publish(*[order_paid(number) for number in (1, 2, 3)])
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "dead", 3))
        await eventually(lambda: work.count("shop:book", "dead", 3))
        shop.broken.clear()
        await work.publish(order_paid(4))
        await eventually(lambda: work.count("shop:ship", "succeeded", 1))
        await eventually(lambda: work.count("shop:mail", "succeeded", 1))

        before = await tables(database)
        replaying = shop.replaying()
        plan = await replaying.plan()
        assert await tables(database) == before, "a plan writes nothing but itself"
        assert (plan["events"], plan["runs"], plan["skipped"]) == (3, 6, 3)
        assert plan["emits"] == {"parcel.requested": 3}
        assert sorted(plan["subjects"]["parcel.requested"]) == ["order:order-1", "order:order-2", "order:order-3"]
        calls = {name: one["calls"] for name, one in plan["effects"].items()}
        assert calls == {"shop:book": 3, "shop:mail": 3, "shop:ship": 3}
        keys = {idempotency_key("default", f"evt_{number}", "shop:mail") for number in (1, 2, 3)}
        assert set(plan["effects"]["shop:mail"]["idempotency_keys"]) == keys

        shop.keys.clear()
        done = await replaying.apply(plan)
        assert (done.is_as_planned, done.otherwise, done.moved) == (True, [], [])
        await eventually(lambda: work.count("shop:ship", "succeeded", 4))
        assert shop.sent() == {"mail": 3, "ship": 3}
        assert {key for name, key in shop.keys if name == "mail"} == keys
        assert set(plan["effects"]["shop:ship"]["idempotency_keys"]) == {key for one, key in shop.keys if one == "ship"}
        assert len(shop.replayed) == 6, "ctx.is_replay"

        again = await replaying.plan()
        assert (again["runs"], again["effects"]["shop:mail"]["skipped"]) == (0, 4), (
            "nothing is left; what succeeded is counted"
        )


# case: R1
async def test_replaying_everything_on_a_healthy_system_changes_nothing(database: Database, broker: Broker) -> None:
    shop = Shop(database, broker)
    work = shop.workshop()
    await work.publish(*[order_paid(number) for number in range(5)])
    async with work.working():
        await eventually(lambda: work.all_succeeded(15))
        before, acted = await tables(database), list(shop.keys)
        plan = await shop.replaying().plan()
        assert (plan["runs"], plan["skipped"]) == (0, 15)
        done = await shop.replaying().apply(plan)
        assert done.is_as_planned
        assert await tables(database) == before
        assert shop.keys == acted
