"""Confirm beside the other stages: at some events a second most of the budget is left to them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumer.ledger.reading import hints
from consumer.payments import Cursor, Page
from consumer.sync.backfill.catch_up import CatchUp
from consumer.sync.backfill.report import BackfillOptions
from consumer.sync.backfill.stage import Backfill
from consumer.sync.confirm.policy import ConfirmPolicy
from consumer.sync.confirm.stage import Confirm
from tests.sync.confirming import hint, stages
from tests.sync.conftest import Simulated, World, delivery, pass_time


@pytest.fixture
def world(world: World, service_side: Simulated) -> World:
    world.api = service_side.api
    return world


@pytest.mark.parametrize("pages_max", [None, 1], ids=["after a whole walk", "after one that was cut, the first of all"])
async def test_a_walk_that_waits_for_the_budget_makes_nobody_read_hints_singly(
    world: World, service_side: Simulated, pages_max: int | None
) -> None:
    # case: B23, C15, I15
    service_side.emit(400)
    confirm, backfill = stages(world)
    first = await backfill.start.begin(BackfillOptions(), world.app.client.events, sweeps=True)
    if await backfill.read(first, reads_max=pages_max):
        await backfill.conclude(first)
    asked, gate = asyncio.Event(), asyncio.Event()

    class Waits:
        async def list(self, *, limit: int = 100, cursor: Cursor | None = None) -> Page[Any]:
            asked.set()
            await gate.wait()
            return await world.app.client.events.list(limit=limit, cursor=cursor)

    async with backfill.walking:
        begun = await backfill.start.begin(BackfillOptions(), Waits(), sweeps=True)
        walking = asyncio.create_task(backfill.read(begun))
        await asked.wait()
        news = service_side.emit(60)
        await hint(world, news)
        before = len(service_side.attempts)
        assert await confirm.once() == 60
        assert [attempt.route for attempt in service_side.attempts[before:]] == ["/v1/events"]
        gate.set()
        assert await walking


@pytest.mark.slow
async def test_some_events_a_second_leave_the_budget_to_the_other_stages(world: World, service_side: Simulated) -> None:
    # case: C15, I15
    confirm, backfill = stages(world)
    await backfill.once()
    came: dict[str, float] = {}
    waited: list[float] = []
    began, before = world.clock.monotonic(), len(service_side.attempts)
    while world.clock.monotonic() - began < 120:
        news = service_side.emit(6, every_s=1 / 6)
        pass_time(world, service_side)
        came |= dict.fromkeys(news, world.clock.monotonic())
        await hint(world, news)
        await confirm.once()
        now = world.clock.monotonic()
        there = {event.id for event in await world.published()} & set(came)
        waited += [now - came.pop(one) for one in there]
    asked = [attempt.route for attempt in service_side.attempts[before:]]
    assert max([*waited, *(world.clock.monotonic() - at for at in came.values())]) <= 5
    assert asked.count("/v1/events") <= 2 * 30, "one page each time, and a time between"
    assert len(asked) <= 2 * 100, "a third of the budget"


async def test_webhooks_of_events_that_are_known_take_none_of_it(world: World, service_side: Simulated) -> None:
    # case: B4, C15
    confirm, backfill = stages(world)
    known = service_side.emit(120)
    await backfill.once()
    await world.work()
    await hint(world, known)
    before = len(service_side.attempts)
    assert await confirm.once() == 120
    assert len(service_side.attempts) == before


async def test_what_a_walk_denies_is_settled_once_each(world: World, service_side: Simulated) -> None:
    # case: I15, I17
    settlement = world.settlement()
    backfill = Backfill(world.app, settlement)
    stage = Confirm(world.app, settlement, catch_up=CatchUp(backfill), policy=ConfirmPolicy(patience_s=0.0))
    service_side.emit(20)
    await backfill.once()
    await hint(world, [f"evt_forged_{number}" for number in range(120)])
    settled = []
    for _ in range(20):
        pass_time(world, service_side)
        settled.append(await stage.once())
    assert min(settled) == 0
    assert sum(settled) == 120


async def test_another_body_waits_for_what_was_published_to_be_recorded(world: World, service_side: Simulated) -> None:
    # case: I16
    confirm, _ = stages(world)
    [event_id] = service_side.emit(1)
    await hint(world, [event_id])
    assert await confirm.once() == 1
    other = delivery(b'{"id":"%s","type":"order.expired"}' % event_id.encode(), 9, event_id=event_id)
    async with world.database.transaction() as session:
        await hints.keep(session, [other], world.clock.now())
    assert await confirm.once() == 0, "it cannot be compared yet"
    await world.work()
    pass_time(world, service_side)
    world.clock.advance(600)
    assert await confirm.once() == 1
