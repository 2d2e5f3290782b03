"""An order is paid, then a plugin is installed: a plan with the handler's name takes pairs that never ran."""

from __future__ import annotations

from dataclasses import replace

from consumer.broker import Broker
from consumer.broker.base import Message
from consumer.ledger import Database
from consumer.ledger.handling import dead
from consumer.ledger.handling.dead import DeadFilter
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


# case: G5, R2
async def test_what_it_missed_of_one_key_comes_in_its_order_though_the_first_fails_once(
    database: Database, broker: Broker
) -> None:
    old = Shop(database, broker)
    work = old.workshop()
    await work.publish(*[order_paid(number, "order-1") for number in (1, 2, 3)])
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "succeeded", 3))
    seen: list[str] = []

    @handles("order.paid", transactional=True, first_wait_s=2.0, name="shop:tally")
    async def tally(event: Event, ctx: Context) -> None:
        if event.id == "evt_1" and ctx.attempt == 1:
            raise ValueError("not yet")
        seen.append(event.id)

    new = Shop(database, broker, more=[tally])
    work = new.workshop()
    work.config = replace(work.config, batch=1)  # each in a transaction of its own, behind what the ledger knows
    async with work.working():
        await new.replaying().apply(await new.replaying().plan(handler="shop:tally"))
        await eventually(lambda: work.count("shop:tally", "succeeded", 3))
    assert list(dict.fromkeys(seen)) == ["evt_1", "evt_2", "evt_3"]


# case: B30, R5
async def test_what_was_taken_in_as_history_is_not_forced_either(database: Database, broker: Broker) -> None:
    """Else "all of this week once more" would deliver what somebody else has delivered before the first walk."""
    shop = Shop(database, broker)
    work = shop.workshop()
    await work.publish(order_paid(1))
    seeded = pack_event(order_paid("old"), plan=SEED)
    await broker.publish_many(TOPIC, [Message(key=seeded.key, value=seeded.value, headers=seeded.headers)])
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "succeeded", 1))
        await eventually(lambda: work.count("shop:mail", "skipped", 1))
        await eventually(lambda: work.count("shop:book", "succeeded", 2))
        before = list(shop.keys)
        for name in ("shop:mail", "shop:book"):
            plan = await shop.replaying().plan(handler=name, forced=True, reason="all once more")
            assert (plan["actions"], plan["refused"]) == ({"rerun": 1}, {"seeded": 1}), name
        assert (await shop.replaying().apply(plan)).is_as_planned
        named = await shop.replaying().plan(handler="shop:mail", status="skipped", forced=True, reason="and those")
        assert (named["actions"], named["refused"]) == ({}, {"seeded": 1})
    assert shop.keys == before


# case: R5, R10
async def test_what_was_given_up_is_forced_by_its_name_only(database: Database, broker: Broker) -> None:
    """Somebody decided that it is not to be done: its money was given back."""
    shop = Shop(database, broker)
    async with shop.with_dead_mail() as work:
        async with database.transaction() as session:
            found = await dead.search(session, DeadFilter(handler="shop:mail"))
            assert await dead.discard(session, found, by="ann", reason="given back", now=work.clock.now()) == 1
        plan = await shop.replaying().plan(handler="shop:mail", forced=True, reason="all once more")
        assert (plan["actions"], plan["left_alone"]) == ({}, {"shop:mail": {"skipped": 1}})
        plan = await shop.replaying().plan(handler="shop:mail", status="skipped", forced=True, reason="paid again")
        assert (await shop.replaying().apply(plan)).is_as_planned
    assert shop.sent()["mail"] == 1
