"""The one-shot commands beside a running leader."""

from __future__ import annotations

from datetime import timedelta

import pytest

from consumer.errors import AnotherLeads, WrongApplication
from consumer.ledger import bookmarks
from consumer.sync.application import ApplicationSync, SyncPolicy
from consumer.sync.backfill import WALK as EVENTS
from consumer.sync.certificate import Certifier
from consumer.sync.cutover import FIRST_WALK
from consumer.sync.identity import WALK as IDENTITY
from consumer.sync.reconcile import WALK as RECONCILE
from consumer.sync.report import BackfillOptions
from tests.sync.conftest import World


def sync(world: World, holder: str) -> ApplicationSync:
    return ApplicationSync(world.reader, world.database, world.outlet, clock=world.clock, holder=holder)


@pytest.fixture
def world(world: World) -> World:
    listed = [world.service.event(number, order_id=f"A-{number}") for number in range(5)]
    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": listed, "next_cursor": None}
    for name in ("orders", "subscriptions", "payments"):
        world.service.lists[f"/v1/{name}"] = lambda cursor, limit: {"items": [], "next_cursor": None}
    world.service.lists["/v1/orders"] = lambda cursor, limit: {
        "items": [{"id": "ord_1", "order_id": "A-1", "status": "PAID"}],
        "next_cursor": None,
    }
    return world


async def test_a_walk_that_moves_the_bookmark_leaves_it_to_the_leader(world: World) -> None:
    # case: B26
    leader, other = sync(world, "one"), sync(world, "two")

    async def meanwhile() -> None:
        with pytest.raises(AnotherLeads):
            await other.backfill_once(BackfillOptions())
        with pytest.raises(AnotherLeads):
            await other.backfill_once(BackfillOptions(seed=True))
        assert (await other.backfill_once(BackfillOptions(dry_run=True))).published == 5
        assert (await other.backfill_once(BackfillOptions(full=True))).published == 5
        assert (await other.reconcile_once()).published == 1

    assert await leader.leader.once(meanwhile)
    assert (await other.backfill_once(BackfillOptions())).listed == 5


async def test_a_dry_run_remembers_nothing(world: World) -> None:
    # case: B31, B32
    one = sync(world, "one")
    await one.backfill_once(BackfillOptions(dry_run=True))
    await one.backfill_once(BackfillOptions(dry_run=True, seed=True, full=True))
    await one.reconcile_once(dry_run=True)
    async with world.database.reading() as session:
        kept = [await bookmarks.load(session, "default", walk) for walk in (IDENTITY, FIRST_WALK, EVENTS, RECONCILE)]
    assert kept == [None] * 4


async def test_wrong_credentials_stop_a_command_before_it_publishes(world: World) -> None:
    # case: B32
    await sync(world, "one").backfill_once(BackfillOptions())
    world.service.records["/v1/application"] = {"id": "svc_app_other"}
    before = len(await world.published())
    for options in (BackfillOptions(), BackfillOptions(full=True)):
        with pytest.raises(WrongApplication):
            await sync(world, "two").backfill_once(options)
    with pytest.raises(WrongApplication):
        await sync(world, "two").reconcile_once()
    assert len(await world.published()) == before


@pytest.mark.parametrize("command", ["backfill", "full", "certificate", "reconcile"])
async def test_a_429_on_the_very_first_call_of_a_command_is_waited_out(world: World, command: str) -> None:
    # case: B24
    patient = SyncPolicy(lease_s=600)  # nobody renews the lease while this clock jumps
    one = ApplicationSync(world.reader, world.database, world.outlet, clock=world.clock, holder="one", policy=patient)
    world.service.failing_once.append(("/v1/application", 429, {"Retry-After": "20"}))
    began, began_s = world.clock.now(), world.clock.monotonic()
    match command:
        case "backfill":
            assert (await one.backfill_once(BackfillOptions())).listed == 5
        case "full":
            assert (await one.backfill_once(BackfillOptions(full=True, dry_run=True))).listed == 5
        case "certificate":
            certifier = Certifier(world.reader, world.database, clock=world.clock)
            assert (await certifier.certify(began, began + timedelta(seconds=1)))["listed"] == 5
        case "reconcile":
            assert (await one.reconcile_once()).published == 1
    assert world.clock.monotonic() - began_s >= 20
    assert world.service.calls["/v1/application"] == 2


async def test_an_explicit_reconcile_acts_on_what_it_finds(world: World) -> None:
    # case: B18
    report = await sync(world, "one").reconcile_once()
    assert report.published == 1
    [event] = await world.published()
    assert event.data["data"]["record"]["status"] == "PAID"
