"""History and reconcile: what was there before the first walk, also when that was not shown all of it."""

from __future__ import annotations

import pytest

from consumer.ledger.reading import sync_state
from consumer.payments import PaymentsError
from consumer.sync.backfill import silence
from consumer.sync.backfill.cutover import Began
from consumer.sync.reconcile.policy import ReconcilePolicy
from consumer.sync.reconcile.state import WALK
from tests.sync.conftest import World, counted_by
from tests.sync.reconciling import (
    baselined,
    events_walked,
    listing,
    lists,
    order,
    reconcile,
    recorded,
    remembered,
    seen,
    subscription,
)


async def test_what_the_baseline_remembers_is_neither_drift_nor_braked(world: World) -> None:
    # case: B30, B31
    lists(
        world,
        orders=[order(number, "PAID") for number in range(30)],
        subscriptions=[subscription(number) for number in range(30)],
    )
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    tried = await stage.once(dry_run=True)
    assert (tried.drifted, tried.baseline, tried.adopted) == (False, 30, 30)
    report = await stage.once()
    assert (report.drifted, report.braked, report.baseline, report.adopted) == (False, False, 30, 30)
    assert {key.partition(":")[0] for key, _ in await seen(world)} == {"subscription"}
    assert counted_by(world.metrics, "drift", "default", "unknown") == 0
    assert (await stage.once(max_changes=0)).braked is False


async def test_before_any_walk_of_the_events_the_second_one_acts_on_no_order_either(world: World) -> None:
    """The nightly walk of a shop that is being taken over shipped what the old system had shipped that day."""
    # case: B30
    await _no_walk_of_the_events(world)
    lists(world, orders=[order(1), order(2)], subscriptions=[subscription(1)])
    stage = reconcile(world)
    assert (await stage.once()).baseline == 2
    lists(world, orders=[order(1, "PAID"), order(2), order(3, "PAID")], subscriptions=[subscription(1, "PAST_DUE")])
    tried = await stage.once(dry_run=True)
    assert (tried.early, tried.baseline, tried.changes["order"]) == (True, 2, 0)
    report = await stage.once()
    assert (report.baseline, report.changes["order"], report.braked) == (2, 0, False)
    assert {key for key, _ in await seen(world)} == {"subscription:sub_1"}, "access follows state"
    await events_walked(world)
    lists(world, orders=[order(1, "PAID"), order(2), order(3, "PAID"), order(4, "PAID")])
    assert (await stage.once()).baseline == 1, "told by no event: paid before that walk"
    lists(world, orders=[order(1, "PAID"), order(2, "PAID"), order(3, "PAID"), order(4, "PAID")])
    assert (await stage.once()).published == 1
    assert ("order:A-2", "PAID") in await seen(world), "paid since then"


async def test_nor_does_a_payment_bring_what_it_remembered(world: World) -> None:
    """A payment of no order that is known has the order read, and what is read as paid is shipped."""
    # case: B30, F38
    await _no_walk_of_the_events(world)
    stage = reconcile(world)
    for number in (1, 2):
        lists(world, orders=[order(number, "PAID")], payments=[{"id": f"pay_{number}", "status": "CONFIRMED"}])
        assert (await stage.once()).baseline == 2
    world.service.lists["/v1/payments"] = listing([{"id": "pay_3", "status": "CONFIRMED"}])
    for _ in range(3):
        await stage._step()  # it looks at the newest payments once those before are remembered
        world.clock.advance(100)
    assert await seen(world) == []
    await events_walked(world)
    await stage._step()
    assert (await remembered(world)).early is False, "at once, not a day later"
    assert await seen(world) == []


async def test_a_limited_walk_that_was_braked_leaves_it_early(world: World) -> None:
    # case: B30, B31
    await _no_walk_of_the_events(world)
    stage = reconcile(world)
    lists(world)
    await stage.once()
    lists(world, orders=[order(number, "PAID") for number in range(3)])
    assert (await stage.once(max_changes=2)).braked
    await events_walked(world)
    assert (await stage.once(max_changes=2)).braked
    assert (await stage.once()).baseline == 3
    assert await seen(world) == []


@pytest.mark.parametrize("walked", [True, False])
async def test_payments_of_an_early_walk_that_was_cut_are_remembered(world: World, walked: bool) -> None:
    # case: B30, F38
    await _no_walk_of_the_events(world)
    stage = reconcile(world)
    lists(world, payments=[{"id": "pay_1", "status": "PENDING"}])
    await stage.once()
    if walked:
        await events_walked(world)
    world.service.failing["/v1/payments"] = 503
    with pytest.raises(PaymentsError):
        await stage.once()
    world.service.failing.clear()
    lists(world, payments=[{"id": "pay_1", "status": "SUCCEEDED"}, {"id": "pay_2", "status": "SUCCEEDED"}])
    await stage._step()
    state = await remembered(world)
    assert (state.early, state.owes_payments, state.payments_baselined) == (not walked, False, True)
    assert await seen(world) == []


async def test_what_events_told_of_is_acted_on_before_any_walk_of_them(world: World) -> None:
    # case: B30, B31
    await _no_walk_of_the_events(world)
    stage = reconcile(world)
    lists(world)
    await stage.once()
    await recorded(world, "order.created", "A-1")
    lists(world, orders=[order(1, "PAID"), order(2, "PAID")])
    assert (await stage.once()).baseline == 1
    assert await seen(world) == [("order:A-1", "PAID")]


async def test_who_had_a_baseline_is_healed_as_ever_though_nothing_walks_the_events(world: World) -> None:
    """An installation of serve, work and the nightly walk, whose first one was made by an older version."""
    # case: B30
    await baselined(world)
    await _no_walk_of_the_events(world)
    lists(world, orders=[order(1, "PAID")])
    assert (await reconcile(world).once()).made == 1


async def _no_walk_of_the_events(world: World) -> None:
    async with world.database.transaction() as session:
        await Began().keep(session, "default", now=world.clock.now())


async def test_who_says_a_limit_has_it_acted_on_before_any_walk_of_the_events(world: World) -> None:
    # case: B30, B31
    async with world.database.transaction() as session:
        await Began().keep(session, "default", now=world.clock.now())
    lists(world, orders=[order(1, "PAID")])
    assert (await reconcile(world).once(max_changes=1)).made == 1


async def test_a_first_walk_that_was_limited_and_braked_leaves_the_baseline_to_be_made(world: World) -> None:
    # case: B30, B31
    lists(world, orders=[order(number, "PAID") for number in range(30)])
    stage = reconcile(world)
    report = await stage.once(max_changes=29)
    assert (report.braked, report.published) == (True, 0)
    assert stage._is_due(await remembered(world))
    await stage._step()
    assert await seen(world) == []
    found = await remembered(world)
    assert (found.baselined, found.braked, stage._is_due(found)) == (True, False, False)


async def test_a_limit_says_that_what_was_there_before_is_to_be_acted_on(world: World) -> None:
    # case: B30, B31
    lists(world, orders=[order(number, "PAID") for number in range(30)])
    report = await reconcile(world).once(max_changes=30)
    assert (report.braked, report.made, report.baseline) == (False, 30, 0)
    assert (await remembered(world)).baselined


@pytest.mark.parametrize("first", [0, 1])
async def test_history_that_the_first_list_left_out_is_braked(world: World, first: int) -> None:
    # case: B30, B31
    historic = [order(number, "PAID") for number in range(600)]
    lists(world, orders=historic[:first])
    stage = reconcile(world)
    assert (await stage.once()).baseline == first
    lists(world, orders=historic)
    report = await stage.once()
    assert (report.braked, report.changes["order"], report.published) == (True, 600 - first, 0)
    assert await seen(world) == []
    assert counted_by(world.metrics, "reconcile_braked", "default") == 1


async def test_an_old_bookmark_of_a_braked_command_lets_no_history_through(world: World) -> None:
    # case: B30, B31
    async with world.database.transaction() as session:
        old = {"began": world.clock.now().isoformat(), "braked": True}
        await sync_state.keep(session, "default", WALK, old, token=1, now=world.clock.now())
    lists(world, orders=[order(number, "PAID") for number in range(600)])
    report = await reconcile(world).once()
    assert (report.braked, await seen(world)) == (True, [])


async def test_a_gap_explains_orders_that_nobody_has_heard_of(world: World) -> None:
    # case: B13, B18, B31
    await baselined(world)
    async with world.database.transaction() as session:
        await silence.note_walk(session, "default", recovered=(), gap=True, token=1, now=world.clock.now())
    lists(world, orders=[order(number, "PAID") for number in range(30)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    assert (await stage.once(max_changes=29)).braked, "who says a number has it counted"
    report = await stage.once()
    assert (report.braked, report.published) == (False, 30)


async def test_a_bookmark_of_an_older_version_says_that_a_baseline_was_made(world: World) -> None:
    # case: B30
    async with world.database.transaction() as session:
        old = {"began": world.clock.now().isoformat(), "braked": False, "changed": 0}
        await sync_state.keep(session, "default", WALK, old, token=1, now=world.clock.now())
    lists(world, orders=[order(1, "PAID")])
    assert (await reconcile(world).once()).published == 1
