"""An order is paid, then a plugin is installed: a plan with the handler's name takes pairs that never ran."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import AsyncMock

import pytest
from sqlalchemy import text

from consumer.broker import Broker
from consumer.broker.base import Message
from consumer.ledger import Database
from consumer.ledger.handling import dead
from consumer.ledger.handling.dead import DeadFilter
from consumer.plugin import Context, Event, handles
from consumer.replay.plan import Planner
from consumer.wire import SEED, pack_event
from tests.replay.stage import Shop
from tests.support.ports import eventually
from tests.work.workshop import TOPIC, order_paid


# case: R2
async def test_pairs_that_never_ran(database: Database, broker: Broker) -> None:
    old = Shop(database, broker)
    work = old.workshop()
    await work.publish(*[order_paid(number) for number in (1, 2)])
    await publish_history(broker, ("old", "order-old"))
    async with work.working():
        await eventually(lambda: work.count("shop:ship", "succeeded", 2))
        await eventually(lambda: work.count("shop:mail", "succeeded", 2))
        await eventually(lambda: work.count("shop:ship", "skipped", 1))
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
    await publish_history(broker, ("old", "order-old"))
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


# case: B30, R2, R10
async def test_history_that_died_is_redriven_and_not_replayed(database: Database, broker: Broker) -> None:
    """For a plan it would be news: what was shipped before the first walk would be shipped again."""
    shop = Shop(database, broker, broken={"book"})
    work = shop.workshop()
    await publish_history(broker, ("old", "order-1"), ("older", "order-1"))
    await work.publish(order_paid(2), order_paid(3))
    await publish_history(broker, ("behind", "order-2"))
    async with work.working():
        await eventually(lambda: work.count("shop:book", "dead", 3))
        await eventually(lambda: work.count("shop:book", "parked", 2))
        shop.broken.clear()
        of_it = await shop.replaying().plan(order="order-1")
        assert (of_it["actions"], of_it["refused"]) == ({}, {"seeded": 1})
        plan = await shop.replaying().plan()
        assert (plan["actions"], plan["refused"]) == ({"retry": 2}, {"seeded": 1})
        assert (await shop.replaying().apply(plan)).is_as_planned
        await eventually(lambda: work.count("shop:book", "succeeded", 3))
        async with database.transaction() as session:
            found = await dead.search(session, DeadFilter(handler="shop:book"))
            await dead.redrive(session, found, by="ann", reason="mended", now=work.clock.now())
        await eventually(lambda: work.count("shop:book", "succeeded", 5))
        await eventually(lambda: work.count("shop:ship", "skipped", 1))
    assert len(shop.keys) == 4, "two orders: each was shipped, and mailed"
    assert await plans_of(database, "shop:book") == {"evt_old": SEED, "evt_older": SEED, "evt_behind": SEED,
                                                     "evt_2": plan["id"], "evt_3": plan["id"]}  # fmt: skip


# case: B30
async def test_a_plan_from_before_history_was_left_out_leaves_it_alone(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(database, broker, broken={"book"})
    work = shop.workshop()
    await work.publish(order_paid(1), order_paid(2, "order-1"), order_paid(3))
    async with work.working():
        await eventually(lambda: work.count("shop:book", "dead", 2))
        await eventually(lambda: work.count("shop:book", "parked", 1))
        plan = await shop.replaying().plan(handler="shop:book", status="dead")
        assert plan["actions"] == {"follow": 1, "retry": 2}
        async with database.transaction() as session:
            await session.execute(text("UPDATE runs SET plan = 'seed' WHERE event_id IN ('evt_2', 'evt_3')"))
        shop.broken.clear()
        monkeypatch.setattr(Planner, "look_again", AsyncMock(return_value=[]))
        done = await shop.replaying().apply(plan)
        assert done.moved == [{"event_id": "evt_3", "handler": "shop:book"}]
        await eventually(lambda: work.count("shop:book", "succeeded", 2))
    assert await work.count("shop:book", "dead", 1)
    assert await plans_of(database, "shop:book") == {"evt_1": plan["id"], "evt_2": SEED, "evt_3": SEED}


async def publish_history(broker: Broker, *named: tuple[str, str]) -> None:
    packed = [pack_event(order_paid(number, order), plan=SEED) for number, order in named]
    await broker.publish_many(TOPIC, [Message(key=one.key, value=one.value, headers=one.headers) for one in packed])


async def plans_of(database: Database, handler: str) -> dict[str, str]:
    async with database.reading() as session:
        of_it = text("SELECT event_id, plan FROM runs WHERE handler = :name")
        return {row.event_id: row.plan for row in await session.execute(of_it, {"name": handler})}


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
