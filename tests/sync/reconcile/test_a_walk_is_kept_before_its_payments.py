"""What is kept of a reconcile walk: before its payments, beside the leader, and for who takes the lead up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from consumer.errors import WrongApplication
from consumer.ledger.reading import sync_state
from consumer.payments import PaymentsError
from consumer.sync.backfill import silence
from consumer.sync.backfill.cutover import FirstWalk
from consumer.sync.health.gauges import LeaderGauges
from consumer.sync.reconcile.policy import ReconcilePolicy
from consumer.sync.reconcile.stage import Reconcile
from consumer.sync.reconcile.state import WALK, keep_state, note_beside
from consumer.telemetry.metrics import Metrics
from tests.sync.conftest import World, counted_by
from tests.sync.reconciling import baselined, listing, lists, order, reconcile, remembered, seen
from tests.sync.service import Json

PAYMENTS: list[Json] = [{"id": f"pay_{number}", "status": "SUCCEEDED"} for number in range(150)]


async def _without_payments(stage: Reconcile) -> None:
    with pytest.raises(PaymentsError):
        await stage.once()


@pytest.mark.parametrize("status", [403, 503])
async def test_payments_that_cannot_be_read_do_not_keep_the_baseline_open(world: World, status: int) -> None:
    # case: B30, B33
    lists(world, orders=[order(1, "PAID")], payments=PAYMENTS)
    world.service.failing["/v1/payments"] = status
    stage = reconcile(world)
    await _without_payments(stage)
    found = await remembered(world)
    assert (found.baselined, found.owes_payments, stage._is_due(found)) == (True, True, False)
    assert found.ended is not None
    assert counted_by(world.metrics, "last_reconcile", "default") == found.ended.timestamp()
    lists(world, orders=[order(1, "PAID"), order(2, "PAID")], payments=PAYMENTS)
    world.clock.advance(6 * 3600)
    await _without_payments(stage)
    assert await seen(world) == [("order:A-2", "PAID")], "its event was lost, and the baseline was made before it"


async def test_payments_alone_are_tried_again_and_history_among_them_is_remembered(world: World) -> None:
    # case: B29, B33
    lists(world, orders=[order(1, "PAID")], payments=PAYMENTS)
    whole = listing(PAYMENTS)
    world.service.lists["/v1/payments"] = lambda cursor, limit: 403 if cursor else whole(cursor, limit)
    await _without_payments(reconcile(world))
    orders = world.service.calls["/v1/orders"]
    stage = reconcile(world)  # after a restart
    with pytest.raises(PaymentsError):
        await stage._step()
    assert (await remembered(world)).owes_payments, "the stage goes on saying that it is held up"
    world.service.lists["/v1/payments"] = listing([*PAYMENTS, {"status": "SUCCEEDED"}])
    await stage._step()
    found = await remembered(world)
    assert (found.owes_payments, found.payments_baselined, found.unplaced) == (False, True, 1)
    assert await seen(world) == []
    assert world.service.calls["/v1/orders"] == orders, "the big lists are not read for them again"
    payments = world.service.calls["/v1/payments"]
    await stage._step()
    assert world.service.calls["/v1/payments"] <= payments + 3, "its two ends are looked at"
    assert await seen(world) == []
    lists(world, orders=[order(1, "PAID")], payments=[*PAYMENTS, {"id": "pay_new", "status": "SUCCEEDED"}])
    await stage.once()
    assert await seen(world) == [("payment:pay_new", "SUCCEEDED")]


async def test_a_brake_is_raised_and_a_gap_closed_before_the_payments_are_read(world: World) -> None:
    # case: B13, B31
    await baselined(world)
    async with world.database.transaction() as session:
        await silence.note_walk(session, "default", recovered=(), gap=True, token=1, now=world.clock.now())
    lists(world, orders=[order(number) for number in range(30)])
    world.service.failing["/v1/payments"] = 403
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    await _without_payments(stage)
    async with world.database.reading() as session:
        assert (await silence.DeliveryHealth.of(session, "default")).gap_at is None
    lists(world, orders=[order(number, "PAID") for number in range(30)])
    await _without_payments(stage)
    assert (await remembered(world)).braked
    assert counted_by(world.metrics, "reconcile_braked", "default") == 1


async def test_a_command_beside_the_leader_heals_though_payments_cannot_be_read(world: World) -> None:
    # case: B31
    await baselined(world)
    lists(world, orders=[order(number) for number in range(30)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    await stage.once()
    lists(world, orders=[order(number, "PAID") for number in range(30)])
    assert (await stage.once()).braked
    world.service.failing["/v1/payments"] = 403
    with pytest.raises(PaymentsError):
        await reconcile(world).once(max_changes=30, leads=False)
    with pytest.raises(PaymentsError):  # nor are the newest ones to be seen
        await stage._step()
    assert (await remembered(world)).braked is False


@pytest.mark.parametrize("left", [0, 30])
async def test_a_command_that_was_under_way_during_a_braked_walk_has_the_leader_look_again_at_once(
    world: World, left: int
) -> None:
    # case: B31
    await baselined(world)
    lists(world, orders=[order(number) for number in range(60)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    await stage.once()
    lists(world, orders=[order(number, "PAID" if number < 30 else "PENDING") for number in range(60)])
    assert (await stage.once()).braked
    command_began_at = await remembered(world)
    world.clock.advance(3600)
    await stage._step()
    later = await remembered(world)
    assert (later.braked, later.began == command_began_at.began) == (True, False)
    await reconcile(world).once(max_changes=30, leads=False)
    async with world.database.transaction() as session:
        await note_beside(session, "default", command_began_at, world.clock.now())
    if left:
        lists(world, orders=[order(number, "PAID") for number in range(60)])
    world.clock.advance(60)
    calls = world.service.calls["/v1/orders"]
    await stage._step()
    assert (await remembered(world)).braked is bool(left)
    assert counted_by(world.metrics, "reconcile_braked", "default") == int(bool(left))
    assert world.service.calls["/v1/orders"] > calls
    calls = world.service.calls["/v1/orders"]
    await stage._step()
    assert world.service.calls["/v1/orders"] == calls, "once is enough"


async def test_who_takes_up_the_lead_shows_the_same_end_of_the_last_walk(world: World) -> None:
    # case: O6
    lists(world)
    empty = listing([])

    def slow(cursor: str | None, limit: int) -> Json | int:
        world.clock.advance(600)
        return empty(cursor, limit)

    world.service.lists["/v1/orders"] = slow
    began = world.clock.now()
    await reconcile(world).once()
    ended = counted_by(world.metrics, "last_reconcile", "default")
    assert ended >= (began + timedelta(seconds=600)).timestamp()
    metrics = Metrics()
    first_walk = FirstWalk(world.app)
    await LeaderGauges(replace(world.app, metrics=metrics), first_walk).take_up()
    assert counted_by(metrics, "last_reconcile", "default") == ended


async def test_what_an_older_version_kept_is_understood(world: World) -> None:
    # case: B30
    now = world.clock.now()
    async with world.database.transaction() as session:
        old = {"began": now.isoformat(), "braked": False, "baselined": True, "changes": 2}
        await sync_state.keep(session, "default", WALK, old, token=1, now=now)
    found = await remembered(world)
    assert (found.ended, found.owes_payments, found.payments_baselined) == (now, False, True)
    async with world.database.transaction() as session:
        again = replace(found, ended=now + timedelta(seconds=5), answered="then")
        await keep_state(session, "default", again, token=1, now=now)
    assert await remembered(world) == again


async def test_payments_owed_are_not_read_with_credentials_of_another_application(world: World) -> None:
    # case: B32, S7
    lists(world, orders=[order(1, "PAID")], payments=PAYMENTS)
    world.service.failing["/v1/payments"] = 503
    await _without_payments(reconcile(world))
    world.service.failing = {}
    world.service.records["/v1/application"] = {"id": "svc_app_other"}
    calls = world.service.calls["/v1/payments"]
    stage = reconcile(world)  # after a restart
    with pytest.raises(WrongApplication):
        await stage._step()
    assert stage.report is None, "nothing was found"
    assert world.service.calls["/v1/payments"] == calls
    assert (await remembered(world)).owes_payments
