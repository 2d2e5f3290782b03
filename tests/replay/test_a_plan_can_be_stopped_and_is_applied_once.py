"""A plan that is cancelled while it is applied stops there; two who apply one plan do it once; and no more is sent per
second than was said, and what died is begun as it comes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker import Broker
from consumer.clock import DrivenClock
from consumer.errors import PlanInProgress, PlanOver
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.ledger.plans import items, plans
from consumer.plugin import Context, Event, handles
from consumer.replay.apply import ReplayProgress
from consumer.replay.send_rate import AT_WORK_MAX, FEW, SendRate
from consumer.work.dispatch import dispatcher
from tests.replay.stage import Shop
from tests.support.ports import eventually
from tests.work.workshop import order_paid

MANY, SOME = 150, 50


async def dead(shop: Shop, count: int) -> Any:
    """So many mails that died, mended, and the plan to do them again; with the workers that are still there."""
    work = shop.workshop()
    await work.publish(*(order_paid(number) for number in range(count)))
    return work


# case: R8
async def test_what_died_is_begun_as_it_comes_and_not_at_the_next_look(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five at a time, each five only when a worker happened to look: 4,000 dead runs took half an hour."""
    shop = Shop(database, broker, broken={"mail"})
    work = await dead(shop, 3 * FEW)
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "dead", 3 * FEW), within_s=60)
        shop.broken.clear()
        plan = await shop.replaying().plan(handler="shop:mail", status="dead")
    monkeypatch.setattr(dispatcher, "IDLE_S", 600.0)
    monkeypatch.setattr(dispatcher, "QUIET_S", 600.0)
    async with work.working():
        async with asyncio.timeout(30):
            assert (await shop.replaying().apply(plan)).is_as_planned
    assert shop.sent()["mail"] == 3 * FEW


# case: R8
async def test_what_a_worker_lets_go_at_the_last_look_is_waited_for(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is parked behind nothing, since its handler is paused, and that is resumed in the moment: a look before saw
    nothing that is due, a look at what is parked sees nothing more."""
    is_broken, begun, goes_on = True, asyncio.Event(), asyncio.Event()

    @handles("order.paid", attempts=1, name="shop:call")
    async def call(event: Event, ctx: Context) -> None:
        if is_broken:
            raise ValueError("not this one")
        begun.set()
        await goes_on.wait()

    async def meanwhile(session: AsyncSession, plan: str) -> bool:
        if not begun.is_set():
            async with database.transaction() as other:
                assert await handlers.resume(other, "shop:call")
            await asyncio.wait_for(begun.wait(), 20)
        return await is_any_stranded(session, plan)

    shop, is_any_stranded = Shop(database, broker, more=[call]), items.is_any_stranded
    work = await dead(shop, 1)
    async with work.working():
        await eventually(lambda: work.count("shop:call", "dead", 1))
        is_broken = False
        plan = await shop.replaying().plan(handler="shop:call")
        async with database.transaction() as session:
            assert await handlers.pause(session, "shop:call", by="ann", reason="x", now=work.clock.now())
        monkeypatch.setattr(items, "is_any_stranded", meanwhile)
        looks: list[ReplayProgress] = []
        applying = asyncio.create_task(shop.replaying().apply(plan, told=looks.append))
        await eventually(lambda: work.count("shop:call", "retrying", 1))
        async with database.transaction() as session:
            await session.execute(text("UPDATE runs SET status = 'parked', next_at = NULL WHERE handler = 'shop:call'"))
        await asyncio.wait_for(begun.wait(), 20)
        before = len(looks)
        await eventually(lambda: applying.done() or len(looks) > before)
        goes_on.set()
        assert (await applying).is_as_planned


# case: R8
@pytest.mark.parametrize(("handler", "does", "many"), [("mail", "mail", MANY), ("book", "ship", 3 * FEW)])
async def test_what_is_cancelled_while_it_is_applied_stops(
    sqlite_ledger: Database, broker: Broker, handler: str, does: str, many: int
) -> None:
    name = f"shop:{handler}"
    shop = Shop(sqlite_ledger, broker, broken={handler})
    work = await dead(shop, many)
    async with work.working():
        await eventually(lambda: work.count(name, "dead", many), within_s=60)
        shop.broken.clear()
        plan = await shop.replaying().plan(handler=name, status="dead")
        assert plan["runs"] == many
        cancelling: list[asyncio.Task[int | None]] = []

        async def cancel() -> int | None:
            async with sqlite_ledger.transaction() as session:
                return await plans.cancel(session, plan["id"], by="bob", reason="enough", now=work.clock.now())

        def told(step: ReplayProgress) -> None:
            if step.done and not cancelling:
                cancelling.append(asyncio.create_task(cancel()))

        applied = await shop.replaying().apply(plan, told=told)
        left = await cancelling[0]
        assert applied.status == "cancelled"
        assert not applied.is_as_planned
        assert applied.otherwise == [], "what was left undone, or goes on, is no surprise"
        assert left is not None
        assert 0 < left < many
        taken = applied.items["taken"]
        assert applied.items == {"taken": taken, "cancelled": many - taken}
        await eventually(lambda: work.count(name, "succeeded", taken), within_s=60)
        await eventually(lambda: shop.sent()[does] == taken, within_s=60, what="what was cancelled was not done")
        again = await shop.replaying().plan(handler=name, status="dead")
        assert again["runs"] == many - taken, "and can be planned anew"


# case: R8
async def test_how_far_it_is_is_told_and_counted_once(sqlite_ledger: Database, broker: Broker) -> None:
    """To count what is left at each look takes the square of its number."""
    shop = Shop(sqlite_ledger, broker, broken={"mail"})
    work = await dead(shop, SOME)
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "dead", SOME), within_s=60)
        shop.broken.clear()
        plan = await shop.replaying().plan(status="dead")
        told: list[ReplayProgress] = []
        sent: list[str] = []
        keep = partial(_keep, sent)
        event.listen(sqlite_ledger.engine.sync_engine, "before_cursor_execute", keep)
        applied = await shop.replaying().apply(plan, told=told.append)
        event.remove(sqlite_ledger.engine.sync_engine, "before_cursor_execute", keep)
    assert applied.items == {"taken": SOME}
    done = [step.done for step in told]
    assert (done[0], done[-1], {step.total for step in told}) == (0, SOME, {SOME})
    assert done == sorted(done)
    assert len(set(done)) >= SOME // FEW, "it moves"
    counts = [one for one in sent if one.startswith("SELECT count(*)") and "plan_items" in one]
    assert len(counts) == 1
    assert len(sent) > 10 * len(counts)


def _keep(sent: list[str], *said: Any) -> None:
    sent.append(said[2])


# case: R15
async def test_two_who_apply_one_plan_do_it_once(sqlite_ledger: Database, broker: Broker) -> None:
    shop = Shop(sqlite_ledger, broker, broken={"mail"})
    work = await dead(shop, SOME)
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "dead", SOME), within_s=60)
        shop.broken.clear()
        operator = shop.replaying()
        plan = await operator.plan(handler="shop:mail", status="dead")
        both = await asyncio.gather(
            *(
                operator.applying(f"{who}/1").run(plan["id"], by=who, reason="why", max_age=timedelta(hours=1))
                for who in ("ann", "bob")
            ),
            return_exceptions=True,
        )
        applied = [one for one in both if not isinstance(one, BaseException)]
        refused = [one for one in both if isinstance(one, BaseException)]
        assert [one.is_as_planned for one in applied] == [True]
        assert [type(one) in (PlanInProgress, PlanOver) for one in refused] == [True], refused
        mails = [key for name, key in shop.keys if name == "mail"]
        assert len(mails) == len(set(mails)) == SOME


# case: R8
def test_no_more_is_sent_per_second_than_was_said() -> None:
    clock = DrivenClock()
    began, sent = clock.monotonic(), 0
    rate = SendRate(clock, rate_per_s=20)
    for _ in range(600):
        room = rate.room(0)
        if room > 0:
            rate.sent(room)
            sent += room
        clock.advance(0.1)
        assert sent <= 20 * (clock.monotonic() - began) + 1
    assert sent > 0.9 * 20 * 60


def test_a_few_are_sent_at_once_and_only_so_many_are_at_work() -> None:
    clock = DrivenClock()
    rate = SendRate(clock, rate_per_s=1e6)
    clock.advance(60)
    at_work, rooms = 0, []
    while room := rate.room(at_work):
        rate.sent(room)
        rooms.append(room)
        at_work += room  # effects that take long: nobody has finished yet
    assert (rooms[0], max(rooms), at_work) == (FEW, FEW, AT_WORK_MAX)
    assert rate.room(AT_WORK_MAX + 5) == 0, "another process may have begun more"
    assert rate.room(AT_WORK_MAX - 1) == 1
