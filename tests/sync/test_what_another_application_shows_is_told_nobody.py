"""Where the service, or what lies before it, comes to answer for another application while this one is read, nothing of
what it shows is told; and all of ours is, when it answers for ours again."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from consumer.errors import WrongApplication
from consumer.sync.backfill.report import BackfillOptions
from consumer.sync.identity import VOUCHED_S
from tests.sync.conftest import World
from tests.sync.refreshing import ask, pending
from tests.sync.service import Json
from tests.sync.test_commands_walk_beside_a_leader import sync

WHO = "/v1/application"


def answers_for(world: World, name: str, *events: Json) -> None:
    """From now on the service answers for this application, which has these events, and an order that is paid."""
    world.service.records[WHO] = {"id": name}
    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": list(events), "next_cursor": None}
    world.service.records["/v1/orders/lookup?A1"] = {"id": f"ord_{name}", "order_id": "A1", "status": "PAID"}


async def told(world: World) -> set[str]:
    return {f"{event.type} {event.key}" for event in await world.published()}


# case: B32, S8
async def test_neither_listed_events_nor_reads_of_it_are_told(world: World) -> None:
    """Its orders were shipped: whose the answers are was asked when the lead was taken, and at the nightly walk."""
    ours, theirs = (world.service.event(number, order_id=f"A{number}") for number in (1, 2))
    answers_for(world, "svc_app_ours")
    one = sync(world, "holder")
    walk = partial(one.leader.once, one.backfill.once)
    await one.backfill_once(BackfillOptions())
    answers_for(world, "svc_app_theirs", theirs)
    await ask(world, "order", "A1")
    world.clock.advance(VOUCHED_S)
    for read in (walk, one.refresh.once):
        with pytest.raises(WrongApplication):
            await read()
    world.service.failing[WHO] = 503  # what was proved stays so until it is answered otherwise
    world.clock.advance(VOUCHED_S)
    with pytest.raises(WrongApplication):
        await walk()
    assert await told(world) == set()
    del world.service.failing[WHO]
    answers_for(world, "svc_app_ours", ours)
    world.clock.advance(VOUCHED_S)
    await walk()
    await one.refresh.once()
    assert await told(world) == {"order.paid order:A1", "order.observed order:A1"}
    assert await pending(world) == []


# case: B32, G5
@pytest.mark.parametrize("record", [{"name": "shop"}, {"id": "svc_app_ours"}], ids=["unnamed", "named"])
async def test_a_service_that_does_not_say_so_keeps_nothing_back(world: World, record: Json) -> None:
    answers_for(world, "svc_app_ours")
    world.service.records[WHO] = record
    one = sync(world, "holder")
    await one.backfill_once(BackfillOptions())
    answers_for(world, "svc_app_ours", world.service.event(1, order_id="A1"))
    world.service.failing[WHO] = 500
    world.clock.advance(VOUCHED_S)
    await one.leader.once(one.backfill.once)
    assert await told(world) == {"order.paid order:A1"}


# case: B32
async def test_it_is_asked_once_for_all_that_is_read_within_seconds(world: World) -> None:
    answers_for(world, "svc_app_ours")
    one = sync(world, "holder")
    await one.backfill_once(BackfillOptions())
    world.clock.advance(VOUCHED_S)
    before = world.service.calls[WHO]
    await asyncio.gather(*(one.identity.vouch() for _ in range(20)))
    assert world.service.calls[WHO] == before + 1
    answers_for(world, "svc_app_theirs")
    world.clock.advance(VOUCHED_S)
    found = await asyncio.gather(*(one.identity.vouch() for _ in range(20)), return_exceptions=True)
    assert {type(each) for each in found} == {WrongApplication}
    assert world.service.calls[WHO] == before + 2
