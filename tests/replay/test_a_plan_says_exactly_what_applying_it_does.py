"""Of orders whose handlers died: the plan names each effect, writes nothing, and applying it does just that, once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import SQLAlchemyError

from consumer.broker import Broker
from consumer.errors import UsageError
from consumer.ledger import Database
from consumer.ledger.handling import events, handlers
from consumer.ledger.tables import HandlerRow
from consumer.plugin import Context, Event, declared, handles, idempotency_key
from consumer.replay import plan as planning
from consumer.replay.apply import ReplayProgress
from consumer.work.registry import Registry
from tests.replay.stage import Shop, all_relayed, tables
from tests.support.clocks import WrongClock
from tests.support.handling.replaying import HOUR, Replaying
from tests.support.ports import eventually
from tests.work.workshop import AT, order_paid


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

        await eventually(lambda: all_relayed(database))
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


# case: R2
async def test_where_a_handler_is_not_installed_nothing_is_said_of_it(database: Database, broker: Broker) -> None:
    """In a shell beside the workers' the plan said that its runs would wait, and applying it mailed."""
    shop = Shop(database, broker)
    elsewhere = Replaying(shop.workshop(), Registry([]))
    async with shop.with_dead_mail() as work:
        mine = await shop.replaying().plan()
        for asked in (elsewhere.plan(), elsewhere.apply(mine)):
            with pytest.raises(UsageError, match="not installed here"):
                await asked
    async with database.transaction() as session:  # and then nobody has it any more
        other = declared(unheard)
        assert other is not None
        ago = work.clock.now() - timedelta(seconds=2 * handlers.LIVE_S)
        await session.execute(update(HandlerRow).values(last_seen_at=ago))
        await handlers.register(session, [other], work.clock.now())
        assert await handlers.gone(session, ["shop:mail"], work.clock.now())
    assert (await elsewhere.plan())["effects"]["shop:mail"]["no_handler"] == 1, "it is waited for"


@handles("order.paid", name="shop:unheard")
async def unheard(event: Event, ctx: Context) -> None:
    """Another worker's."""


# case: R1
async def test_replaying_everything_on_a_healthy_system_changes_nothing(database: Database, broker: Broker) -> None:
    shop = Shop(database, broker)
    work = shop.workshop()
    await work.publish(*[order_paid(number) for number in range(5)])
    async with work.working():
        await eventually(lambda: work.all_succeeded(15))
        await eventually(lambda: all_relayed(database))
        before, acted = await tables(database), list(shop.keys)
        plan = await shop.replaying().plan()
        assert (plan["runs"], plan["skipped"]) == (0, 15)
        done = await shop.replaying().apply(plan)
        assert done.is_as_planned
        assert await tables(database) == before
        assert shop.keys == acted


# case: R2
async def test_what_a_failing_one_wrote_is_not_predicted(database: Database, broker: Broker) -> None:
    """One fails after it wrote, one hides the database's error: neither reaches those that are tried with them."""
    is_broken = True

    @handles("order.paid", transactional=True, attempts=1, name="shop:tally")
    async def tally(event: Event, ctx: Context) -> None:
        if is_broken:
            raise ValueError("not yet")
        assert ctx.session is not None
        await ctx.session.execute(text("INSERT INTO budgets (name, value) VALUES (:name, '')"), {"name": event.key})
        seen = await ctx.session.scalar(text("SELECT count(*) FROM budgets"))
        if event.order_id == "order-2":
            raise ValueError("after it wrote")
        if event.order_id == "order-3":
            with suppress(SQLAlchemyError):
                await ctx.session.execute(text("SELECT * FROM nowhere"))
        ctx.emit("order.tallied", f"order:{seen}", {}, once=f"{seen}")

    shop = Shop(database, broker, more=[tally])
    work = shop.workshop()
    await work.publish(*[order_paid(number) for number in (1, 2, 3, 4)])
    async with work.working():
        await eventually(lambda: work.count("shop:tally", "dead", 4))
        is_broken = False
        replaying = shop.replaying()
        plan = await replaying.plan(handler="shop:tally")
        good = 2 if database.dialect == "postgresql" else 3  # PostgreSQL takes no statement after one that failed
        assert (plan["effects"]["shop:tally"]["fails"], plan["emits"]) == (4 - good, {"order.tallied": good})
        assert sorted(plan["subjects"]["order.tallied"]) == [f"order:{number + 1}" for number in range(good)]
        done = await replaying.apply(plan)
        assert done.runs["shop:tally"] == {"succeeded": good, "dead": 4 - good}


# case: R2
@pytest.mark.parametrize("fails", ["order-2", "none"])
async def test_what_a_handler_takes_together_is_tried_together(database: Database, broker: Broker, fails: str) -> None:
    """And each for itself when one of them fails: the others are predicted as if it had not been there."""
    is_broken, sizes = True, list[int]()

    @handles("order.paid", transactional=True, batch=True, attempts=1, name="shop:tally")
    async def tally(batch: Sequence[tuple[Event, Context]]) -> None:
        sizes.append(len(batch))
        for event, ctx in batch:
            if is_broken or event.order_id == fails:
                raise ValueError("not yet")
            assert ctx.session is not None
            await ctx.session.execute(text("INSERT INTO budgets (name, value) VALUES (:name, '')"), {"name": event.id})
            ctx.emit("order.tallied", event.key, {"of": event.id}, once=event.id)

    shop = Shop(database, broker, more=[tally])
    work = shop.workshop()
    # Two of one order: the second has a turn of its own, after the first.
    await work.publish(*[order_paid(number) for number in (1, 2, 3, 4)], order_paid(5, "order-4"))
    async with work.working():
        await eventually(lambda: work.count("shop:tally", "dead", 4))
        await eventually(lambda: work.count("shop:tally", "parked", 1))
        is_broken = False
        sizes.clear()
        replaying = shop.replaying()
        plan = await replaying.plan(handler="shop:tally", status="dead")
        failing = 0 if fails == "none" else 1
        assert sizes[0] == 4
        assert sizes[1:] == ([1] if fails == "none" else [1] * 5)
        assert (plan["effects"]["shop:tally"]["fails"], plan["emits"]) == (failing, {"order.tallied": 5 - failing})
        done = await replaying.apply(plan)
        assert (done.is_as_planned, done.otherwise) == (True, [])
        expected = {"succeeded": 5 - failing} | ({"dead": 1} if failing else {})
        assert done.runs["shop:tally"] == expected


# case: R2
async def test_who_applies_waits_for_what_a_worker_dates_a_moment_later(database: Database, broker: Broker) -> None:
    """What is let go or emitted while it looks is dated later than its look; on two machines, by as much as their
    clocks differ."""
    is_broken, looks = True, list[ReplayProgress]()

    @handles("order.paid", attempts=1, name="shop:slow")
    async def slow(event: Event, ctx: Context) -> None:
        if is_broken:
            raise ValueError("not yet")
        await eventually(lambda: len(looks) >= 10)

    shop = Shop(database, broker, more=[slow])
    work = shop.workshop()
    await work.publish(order_paid(1))
    async with work.working():
        await eventually(lambda: work.count("shop:slow", "dead", 1))
        is_broken = False
        replaying = shop.replaying()
        plan = await replaying.plan(handler="shop:slow")
        late = replaying.applying(clock=WrongClock(-timedelta(seconds=5)))
        try:
            done = await late.run(plan["id"], by="ann", reason="why", max_age=HOUR, told=looks.append)
        finally:
            looks *= 10
        assert (done.is_as_planned, done.otherwise) == (True, [])
        assert done.runs == {"shop:slow": {"succeeded": 1}}


# case: R2
async def test_timers_are_named_and_not_waited_for(database: Database, broker: Broker) -> None:
    """One goes off while the plan is applied: what comes of it is told apart from what was predicted."""
    is_broken, went_off = True, asyncio.Event()

    @handles("order.paid", transactional=True, attempts=1, name="shop:remind")
    async def remind(event: Event, ctx: Context) -> None:
        if is_broken:
            raise ValueError("not yet")
        ctx.emit("reminder.due", event.key, {}, not_before=ctx.now + timedelta(seconds=0.3))
        ctx.emit("reminder.last", event.key, {}, not_before=ctx.now + timedelta(days=1))

    @handles("reminder.due", transactional=True, name="shop:due")
    async def due(event: Event, ctx: Context) -> None:
        ctx.emit("reminder.sent", event.key, {})

    @handles("reminder.sent", name="shop:sent")
    async def sent(event: Event, ctx: Context) -> None:
        went_off.set()

    @handles("order.paid", attempts=1, name="shop:slow")
    async def slow(event: Event, ctx: Context) -> None:
        if is_broken:
            raise ValueError("not yet")
        await went_off.wait()

    shop = Shop(database, broker, more=[remind, due, sent, slow])
    work = shop.workshop()
    await work.publish(order_paid(1))
    async with work.working():
        await eventually(lambda: work.count("shop:slow", "dead", 1))
        await eventually(lambda: work.count("shop:remind", "dead", 1))
        is_broken = False
        replaying = shop.replaying()
        plan = await replaying.plan(status="dead")
        assert plan["timers"] == {"reminder.due": 1, "reminder.last": 1}
        done = await replaying.apply(plan)
    assert done.is_as_planned, done
    assert done.timers == {"reminder.last": 1}
    assert [one.partition(" ")[0] for one in done.by_timers] == ["reminder.sent"]


# case: R2
@pytest.mark.parametrize(("most", "is_all"), [(2, False), (3, True)])
async def test_it_says_whether_there_is_more_than_it_holds(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch, most: int, is_all: bool
) -> None:
    """A test event that was taken out makes no room for what is not in it."""
    monkeypatch.setattr(planning, "ITEMS_MAX", most)
    of_a_test = replace(order_paid(1), raw=b'{"livemode": false}')
    async with database.transaction() as session:
        await events.record(session, [of_a_test, order_paid(2), order_paid(3)], AT)
    plan = await Shop(database, broker).replaying().plan(handler="shop:mail")
    assert (plan["runs"], plan["refused"], plan["complete"]) == (most - 1, {"test": 1}, is_all)
