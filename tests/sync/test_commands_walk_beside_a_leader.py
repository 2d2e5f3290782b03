"""The one-shot commands beside a running leader."""

from __future__ import annotations

from datetime import timedelta

import pytest

from consumer.checks.certificate import Certifier
from consumer.errors import AnotherLeads, WrongApplication
from consumer.ledger.reading import sync_state
from consumer.ledger.reading.sync_state import FIRST_WALK, IDENTITY
from consumer.lists.bookmark import WALK as EVENTS
from consumer.sync.backfill import silence
from consumer.sync.backfill.report import BackfillOptions
from consumer.sync.health.status import application_status
from consumer.sync.reconcile.state import WALK as RECONCILE
from consumer.sync.reconcile.state import take_over
from consumer.sync.role import ApplicationSync, SyncPolicy
from tests.sync.conftest import World, counted_by
from tests.sync.reconciling import events_walked, listing, order


def sync(world: World, holder: str) -> ApplicationSync:
    return ApplicationSync(world.api, world.database, world.publisher, clock=world.clock, holder=holder)


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
        assert (await other.reconcile_once(max_changes=1)).published == 1

    await leader.leader.once(meanwhile)
    assert (await other.backfill_once(BackfillOptions())).listed == 5


async def test_a_dry_run_remembers_nothing(world: World) -> None:
    # case: B31, B32
    one = sync(world, "one")
    await one.backfill_once(BackfillOptions(dry_run=True))
    await one.backfill_once(BackfillOptions(dry_run=True, seed=True, full=True))
    await one.reconcile_once(dry_run=True)
    async with world.database.reading() as session:
        kept = [await sync_state.load(session, "default", walk) for walk in (IDENTITY, FIRST_WALK, EVENTS, RECONCILE)]
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
    one = ApplicationSync(world.api, world.database, world.publisher, clock=world.clock, holder="one", policy=patient)
    world.service.failing_once.append(("/v1/application", 429, {"Retry-After": "20"}))
    began, began_s = world.clock.now(), world.clock.monotonic()
    match command:
        case "backfill":
            assert (await one.backfill_once(BackfillOptions())).listed == 5
        case "full":
            assert (await one.backfill_once(BackfillOptions(full=True, dry_run=True))).listed == 5
        case "certificate":
            certifier = Certifier(world.api, world.database, clock=world.clock)
            assert (await certifier.certify(began, began + timedelta(seconds=1)))["listed"] == 5
        case "reconcile":
            assert (await one.reconcile_once(max_changes=1)).published == 1
    assert world.clock.monotonic() - began_s >= 20
    tells = command in ("backfill", "reconcile")  # and time has passed since: who it is for is asked once more
    assert world.service.calls["/v1/application"] == 2 + tells


async def test_a_limited_reconcile_acts_on_what_it_finds(world: World) -> None:
    # case: B18
    report = await sync(world, "one").reconcile_once(max_changes=1)
    assert report.published == 1
    [event] = await world.published()
    assert event.data["data"]["record"]["status"] == "PAID"


async def test_the_first_reconcile_of_all_ships_no_history_whoever_makes_it(world: World) -> None:
    # case: B30
    await events_walked(world)
    historic = [{"id": f"ord_{number}", "order_id": f"H-{number}", "status": "PAID"} for number in range(523)]
    world.service.lists["/v1/orders"] = listing(historic)
    one, two = sync(world, "one"), sync(world, "two")

    async def meanwhile() -> None:
        assert (await two.reconcile_once()).baseline == 523

    await one.leader.once(meanwhile)
    report = await two.reconcile_once()
    assert (report.published, await world.published()) == (0, [])
    late = {"id": "ord_new", "order_id": "N-1", "status": "PAID"}
    world.service.lists["/v1/orders"] = listing([late, *historic])

    async def lead() -> None:
        await one.reconcile._step()

    await one.leader.once(lead)
    assert await world.published() == [], "the command's walk was the first: the next one is not due"
    assert (await two.reconcile_once()).published == 1
    [event] = await world.published()
    assert event.key == "order:N-1"


async def test_what_a_command_makes_beside_the_leader_ends_the_leaders_alarm(world: World) -> None:
    # case: B31, B13
    await events_walked(world)
    leader, other = sync(world, "one"), sync(world, "two")
    world.service.lists["/v1/orders"] = listing([order(number) for number in range(600)])
    await leader.reconcile_once()
    world.service.lists["/v1/orders"] = listing([order(number, "PAID") for number in range(600)])

    async def has_alarms() -> tuple[bool, bool]:
        async with world.database.reading() as session:
            found = await application_status(session, "default", "svc_app_test", world.clock.now())
        return found.reconcile_braked, found.gap_at is not None

    async def meanwhile() -> None:
        world.clock.advance(1)
        async with world.database.transaction() as session:
            token, now = leader.leader.token, world.clock.now()
            await silence.note_walk(session, "default", recovered=(), gap=True, token=token, now=now)
        world.clock.advance(1)
        await leader.reconcile._step()
        assert await has_alarms() == (True, True)
        assert (await other.reconcile_once(max_changes=599)).braked
        await leader.reconcile._step()
        assert await has_alarms() == (True, True)
        calls = world.service.calls["/v1/orders"]
        assert (await other.reconcile_once(max_changes=600)).made == 600
        walked = world.service.calls["/v1/orders"] - calls
        await leader.reconcile._step()
        assert await has_alarms() == (False, False)
        assert counted_by(leader.app.metrics, "reconcile_braked", "default") == 0
        assert world.service.calls["/v1/orders"] == calls + walked, "the leader takes it over, it does not walk again"

    await leader.leader.once(meanwhile)


async def test_a_gap_found_after_a_command_began_is_not_healed_by_it(world: World) -> None:
    # case: B13
    leader, other = sync(world, "one"), sync(world, "two")
    await leader.reconcile_once()

    async def meanwhile() -> None:
        before, after = world.clock.now(), world.clock.now() + timedelta(seconds=9)
        async with world.database.transaction() as session:
            await silence.note_walk(session, "default", recovered=(), gap=True, token=99, now=before)
        await other.reconcile_once()
        async with world.database.transaction() as session:
            await silence.note_walk(session, "default", recovered=(), gap=True, token=99, now=after)
            await take_over(session, "default", token=99, now=after)
            assert (await silence.DeliveryHealth.of(session, "default")).gap_at == after

    await leader.leader.once(meanwhile)


async def test_a_closed_gap_that_a_walk_of_the_events_put_back_is_closed_again(world: World) -> None:
    # case: B13
    leader = sync(world, "one")
    before = world.clock.now()
    world.clock.advance(5)
    await leader.reconcile_once()
    async with world.database.transaction() as session:
        await silence.note_walk(session, "default", recovered=(), gap=True, token=99, now=before)
        await take_over(session, "default", token=99, now=world.clock.now())
        assert (await silence.DeliveryHealth.of(session, "default")).gap_at is None
