"""Money that was taken at the service and is unknown here is told within minutes, whatever lies between looks fine."""

from __future__ import annotations

from datetime import timedelta

import pytest

from consumer.events import Event, Source, Trust
from consumer.ledger.handling import events
from consumer.ledger.reading import sync_state
from consumer.sync.backfill import starting_point
from consumer.sync.backfill.bookmark import Bookmark, ListOrder
from consumer.sync.canary.sightings import LATE, Late, Sightings
from consumer.sync.canary.stage import PAGES_AT_ONCE, Canary, load
from consumer.sync.health.status import application_status
from tests.sync.conftest import World
from tests.sync.reconciling import listing, order
from tests.sync.service import Json

LATE_S = LATE.total_seconds()


async def walked(world: World, order: ListOrder = ListOrder.NEWEST_FIRST) -> None:
    """The events were walked to their end once."""
    mark = Bookmark(order=order, walked_at=world.clock.now()).dump()
    async with world.database.transaction() as session:
        await sync_state.keep(session, "default", starting_point.WALK, mark, token=1, now=world.clock.now())


def shows(world: World, *, orders: list[Json] | None = None, listed: list[Json] | None = None) -> None:
    """What the service lists, in the order given."""
    world.service.lists["/v1/orders"] = listing(orders or [])
    world.service.lists["/v1/events"] = listing(listed or [])


def event(number: int) -> Json:
    return {"id": f"evt_{number}", "type": "order.paid", "data": {"object": {"order_id": f"A-{number}"}}}


async def recorded(world: World, number: int, event_type: str = "order.paid") -> None:
    found = Event(
        application="default",
        id=f"evt_{number}",
        type=event_type,
        key=f"order:A-{number}",
        trust=Trust.READ,
        source=Source.BACKFILL,
        raw=b"{}",
        received_at=world.clock.now(),
        order_id=f"A-{number}",
    )
    async with world.database.transaction() as session:
        await events.record(session, [found], world.clock.now())


def canary(world: World) -> Canary:
    return Canary(world.api, world.database, clock=world.clock, token=lambda: 1, metrics=world.metrics)


async def told(world: World) -> Late | None:
    """As `status` tells it."""
    async with world.database.reading() as session:
        app_id = world.api.client.credentials.app_id
        return (await application_status(session, "default", app_id, world.clock.now())).missing


async def kept(world: World) -> Sightings:
    async with world.database.reading() as session:
        return await load(session, "default")


# case: B27, O5
async def test_a_paid_order_and_its_event_that_never_came_are_told_after_five_minutes(world: World) -> None:
    await walked(world)
    shows(world)
    stage = canary(world)
    await stage.look()
    shows(world, orders=[order(1, "PAID"), order(2, "PENDING")], listed=[event(1)])
    await stage.look()
    assert await told(world) is None, "a healthy path takes a while, too"
    world.clock.advance(LATE_S)
    await stage.look()
    since = world.clock.now() - LATE
    assert await told(world) == Late(1, 1, since, ("A-1", "evt_1"))
    assert world.metrics.value("missing_s", "default") == LATE_S
    assert world.metrics.value("missing_order", "default") == 1
    await recorded(world, 1)
    await stage.look()
    assert await told(world) is None
    assert world.metrics.value("missing_s", "default") == 0


# case: B30
async def test_what_was_there_before_us_is_history(world: World) -> None:
    await walked(world)
    shows(world, orders=[order(1, "PAID")], listed=[event(1)])
    stage = canary(world)
    await stage.look()
    shows(world, orders=[order(2, "PAID"), order(1, "PAID")], listed=[event(1)])
    await stage.look()
    world.clock.advance(LATE_S)
    found = await told(world)
    assert found is not None
    assert found.ids == ("A-2",)


async def test_before_the_first_walk_nothing_is_asked(world: World) -> None:
    shows(world, orders=[order(1, "PAID")])
    await canary(world).look()
    assert not world.service.calls["/v1/orders"]
    assert await kept(world) == Sightings()


async def test_a_look_costs_two_reads(world: World) -> None:
    await walked(world)
    shows(world, orders=[order(number, "PAID") for number in range(300)], listed=[event(n) for n in range(300)])
    await canary(world).look()
    assert world.service.calls.total() == 2


async def test_what_newer_ones_push_off_the_page_is_still_missing(world: World) -> None:
    await walked(world)
    shows(world)
    stage = canary(world)
    await stage.look()
    shows(world, orders=[order(1, "PAID")])
    await stage.look()
    for number in range(2, 140):
        await recorded(world, number)
    shows(world, orders=[order(number, "PAID") for number in range(139, 0, -1)])
    await stage.look()
    assert set((await kept(world)).missing) == {"order:A-1"}
    await recorded(world, 1)
    await stage.look()
    assert not (await kept(world)).missing


# case: U6
async def test_a_list_that_begins_with_its_oldest_is_followed_to_its_end(world: World) -> None:
    await walked(world, ListOrder.OLDEST_FIRST)
    before = [order(number, "PAID") for number in range(650)]
    shows(world, orders=before)
    stage = canary(world)
    await stage.look()
    assert world.service.calls["/v1/orders"] == PAGES_AT_ONCE
    await stage.look()
    shows(world, orders=[*before, order(999, "PAID")])
    await stage.look()
    assert set((await kept(world)).missing) == {"order:A-999"}
    calls = world.service.calls["/v1/orders"]
    await stage.look()
    assert world.service.calls["/v1/orders"] == calls + 1, "from where it was"


@pytest.mark.parametrize("age", [timedelta(days=8)])
async def test_what_the_service_no_longer_means_is_forgotten(world: World, age: timedelta) -> None:
    await walked(world)
    shows(world)
    stage = canary(world)
    await stage.look()
    shows(world, listed=[event(1)])
    await stage.look()
    shows(world)
    world.clock.advance(age.total_seconds())
    await stage.look()
    assert not (await kept(world)).missing
