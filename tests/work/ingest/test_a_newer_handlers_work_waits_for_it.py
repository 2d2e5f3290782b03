"""While a rolling deploy lasts, what a new handler will want is kept for it by the processes without it."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.broker import Broker, Message
from consumer.clock import DrivenClock
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.ledger.handling.handlers import LIVE_S
from consumer.plugin import Context, Event, Handler, declared, handles
from consumer.wire import SEED, pack_event
from consumer.work.ingest.rolling_deploy import LOOK_EVERY_S, ROLLOUT_S, RollingDeploy, brings_new
from consumer.work.registry import Registry
from tests.support.ports import eventually
from tests.work.workshop import TOPIC, Workshop, order_paid


def named(name: str, *types: str, transactional: bool = False, seen: list[str] | None = None) -> Any:
    @handles(*(types or ("order.paid",)), name=name, transactional=transactional)
    async def function(event: Event, ctx: Context) -> None:
        if seen is not None:
            seen.append(event.id)

    return function


def of(function: Any) -> Handler:
    found = declared(function)
    assert found is not None
    return found


async def registered(database: Database, clock: Any, *functions: Any) -> None:
    """A process that has these handlers is alive."""
    async with database.transaction() as session:
        await handlers.register(session, [of(function) for function in functions], clock.now())


async def kept_for(rollout: RollingDeploy, database: Database) -> list[str]:
    async with database.reading() as session:
        return sorted(handler.name for handler in (await rollout.registry(session)).absent)


# case: O9, R14, H6
@pytest.mark.parametrize("transactional", [True, False])
async def test_its_work_waits_for_it(database: Database, broker: Broker, transactional: bool) -> None:
    seen: list[str] = []
    old, new = named("test:old"), named("test:new", transactional=transactional, seen=seen)
    shop = Workshop(database, broker, [old])
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.count("test:old", "succeeded", 1))
        await registered(database, shop.clock, old, new)
        await shop.clock.sleep(LOOK_EVERY_S)
        await shop.publish(order_paid(2, "one"), order_paid(3, "one"))
        await eventually(lambda: shop.count("test:old", "succeeded", 3))
        assert await shop.count("test:new", "retrying", 1)
        assert await shop.count("test:new", "parked", 1)
    shop.functions = [old, new]
    async with shop.working():
        await eventually(lambda: shop.count("test:new", "succeeded", 2))
    assert seen == ["evt_2", "evt_3"], "in their order, and nothing from before it was there"


# case: O9, R14, H6
async def test_an_older_process_that_starts_again_meanwhile_keeps_it_too(
    sqlite_ledger: Database, broker: Broker
) -> None:
    """It is younger than the newcomer; what it takes must not be missing for good."""
    seen: list[str] = []
    old, new = named("test:old"), named("test:new", seen=seen)
    shop = Workshop(sqlite_ledger, broker, [old])
    async with shop.working() as worker:
        await eventually(lambda: worker.polls)
    await registered(sqlite_ledger, shop.clock, old, new)
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.count("test:old", "succeeded", 1))
        assert await shop.count("test:new", "retrying", 1)
    shop.functions = [old, new]
    async with shop.working():
        await eventually(lambda: shop.count("test:new", "succeeded", 1))
    assert seen == ["evt_1"]


# case: O9, B30
@pytest.mark.parametrize(("transactional", "status"), [(True, "retrying"), (False, "skipped")])
async def test_history_is_kept_for_projections_only(
    sqlite_ledger: Database, broker: Broker, transactional: bool, status: str
) -> None:
    old, new = named("test:old", transactional=True), named("test:new", transactional=transactional)
    shop = Workshop(sqlite_ledger, broker, [old])
    async with shop.working() as worker:
        await eventually(lambda: worker.polls)
        await registered(sqlite_ledger, shop.clock, old, new)
        await shop.clock.sleep(LOOK_EVERY_S)
        packed = pack_event(order_paid(1), plan=SEED)
        seeded = Message(key=packed.key, value=packed.value, headers=packed.headers)
        await broker.publish_many(TOPIC, [seeded])
        await eventually(lambda: shop.count("test:old", "succeeded", 1))
        assert await shop.count("test:new", status, 1)


# case: O9, H7
async def test_nothing_is_kept_for_a_handler_that_is_on_its_way_out(sqlite_ledger: Database) -> None:
    clock = DrivenClock()
    mine, leaving = named("test:mine"), named("test:leaving")
    await registered(sqlite_ledger, clock, mine, leaving)
    clock.advance(3)
    rollout = RollingDeploy(Registry([of(mine)]), clock)
    for _ in range(3):
        assert await kept_for(rollout, sqlite_ledger) == []
        clock.advance(LOOK_EVERY_S)
        await registered(sqlite_ledger, clock, mine, leaving)


# case: O9, H7
async def test_what_came_long_ago_or_before_my_own_code_is_on_its_way_out(sqlite_ledger: Database) -> None:
    clock = DrivenClock()
    first, added, mine = named("test:first"), named("test:added"), named("test:mine")
    await registered(sqlite_ledger, clock, first)
    clock.advance(3600)
    await registered(sqlite_ledger, clock, first, added)
    clock.advance(60)
    restarted = RollingDeploy(Registry([of(first)]), clock)
    assert await kept_for(restarted, sqlite_ledger) == ["test:added"]

    # The version that has `mine` instead of `added` is newer than both.
    await registered(sqlite_ledger, clock, first, mine)
    assert await kept_for(RollingDeploy(Registry([of(first), of(mine)]), clock), sqlite_ledger) == []

    # A day later `added` is no news any more, and a version without it takes it for what it is.
    clock.advance(ROLLOUT_S)
    await registered(sqlite_ledger, clock, first, added)
    assert await kept_for(RollingDeploy(Registry([of(first)]), clock), sqlite_ledger) == []


# case: O9
async def test_a_newcomer_that_comes_back_at_once_finds_what_a_younger_process_took(sqlite_ledger: Database) -> None:
    """Taken back and rolled out again within the time for which it counts as alive."""
    clock = DrivenClock()
    mine, new = named("test:mine"), named("test:new")
    await registered(sqlite_ledger, clock, mine)
    clock.advance(60)
    await registered(sqlite_ledger, clock, mine, new)
    clock.advance(LIVE_S / 2)
    assert await kept_for(RollingDeploy(Registry([of(mine)]), clock), sqlite_ledger) == ["test:new"]


# case: O9
async def test_a_newcomer_that_is_taken_back_and_comes_again(sqlite_ledger: Database) -> None:
    clock = DrivenClock()
    mine, new = named("test:mine"), named("test:new")
    rollout = RollingDeploy(Registry([of(mine)]), clock)
    clock.advance(1)
    await registered(sqlite_ledger, clock, mine, new)
    clock.advance(LOOK_EVERY_S)
    assert await kept_for(rollout, sqlite_ledger) == ["test:new"]
    clock.advance(LIVE_S + 1)  # rolled back: nobody has it any more
    assert await kept_for(rollout, sqlite_ledger) == []

    # This process is older than the second try, younger than the first one.
    younger = RollingDeploy(Registry([of(mine)]), clock)
    assert await kept_for(younger, sqlite_ledger) == []
    clock.advance(LOOK_EVERY_S)
    await registered(sqlite_ledger, clock, mine, new)
    for process in (rollout, younger):
        assert await kept_for(process, sqlite_ledger) == ["test:new"]


async def test_it_looks_once_a_second(sqlite_ledger: Database) -> None:
    clock = DrivenClock()
    rollout = RollingDeploy(Registry([]), clock)
    assert await kept_for(rollout, sqlite_ledger) == []
    clock.advance(LOOK_EVERY_S / 2)
    await registered(sqlite_ledger, clock, named("test:new"))
    assert await kept_for(rollout, sqlite_ledger) == []
    clock.advance(LOOK_EVERY_S / 2)
    assert await kept_for(rollout, sqlite_ledger) == ["test:new"]


# case: R14
async def test_who_brings_one_beside_others_knows_it_and_lets_them_look_first(sqlite_ledger: Database) -> None:
    clock, mine, new = DrivenClock(), named("test:mine"), named("test:new")

    async def is_news(*functions: Any) -> bool:
        async with sqlite_ledger.reading() as session:
            return brings_new(Registry(list(map(of, functions))), await handlers.everyone(session), clock.now())

    assert not await is_news(mine, new)  # alone
    await registered(sqlite_ledger, clock, mine)
    assert await is_news(mine, new)
    assert not await is_news(mine)
    await registered(sqlite_ledger, clock, mine, new)
    assert not await is_news(mine, new)
    clock.advance(LIVE_S + 1)
    await registered(sqlite_ledger, clock, mine)
    assert await is_news(mine, new)  # it was gone
    clock.advance(LIVE_S + 1)
    assert not await is_news(mine, new)  # nobody is there to look
