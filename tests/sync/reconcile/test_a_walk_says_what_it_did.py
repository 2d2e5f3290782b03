"""What a walk says of itself: how long it took, that it is complete, what it found, and what it remembered at first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.payments import PaymentsError
from consumer.sync.reconcile.drift import DRIFTED, Drift
from consumer.sync.reconcile.policy import ReconcilePolicy
from consumer.sync.reconcile.stage import Reconcile
from tests.sync.conftest import World, counted_by
from tests.sync.reconciling import baselined, lists, order, reconcile, remembered, seen, subscription

TOOK_S = 7.0


@pytest.fixture
def stage(world: World, monkeypatch: pytest.MonkeyPatch) -> Reconcile:
    """Its reads take seven seconds, from some time on."""
    world.clock.advance(100)
    stage = reconcile(world)

    async def checks(**_: Any) -> None:
        world.clock.advance(TOOK_S)

    monkeypatch.setattr(stage._identity, "check", checks)
    return stage


async def test_how_long_it_took_and_that_it_is_complete(world: World, stage: Reconcile) -> None:
    lists(world, orders=[order(1)], payments=[{"id": "pay_1", "status": "SUCCEEDED"}])
    report = await stage.once()
    assert report.seconds == pytest.approx(TOOK_S, abs=0.1)
    assert (report.complete, report.dry_run) == (True, False)
    dry = await stage.once(dry_run=True)
    assert dry.seconds == pytest.approx(TOOK_S, abs=0.1)
    assert (dry.complete, dry.dry_run) == (True, True)


async def test_payments_that_were_owed_are_told_with_their_own_time(world: World, stage: Reconcile) -> None:
    # case: B31
    lists(world)
    del world.service.lists["/v1/payments"]
    with pytest.raises(PaymentsError):
        await stage.once()
    assert stage.report is not None
    assert not stage.report.complete
    assert (await remembered(world)).owes_payments
    lists(world, payments=[{"status": "SUCCEEDED"}])
    with capture_logs() as logs:
        assert await stage._step() == ReconcilePolicy().look_s
    assert [one["records"] for one in logs if one["event"] == "reconcile_found_unplaced"] == [1]
    assert stage.report.seconds == pytest.approx(TOOK_S, abs=0.1)
    assert stage.report.complete
    assert not (await remembered(world)).owes_payments


async def test_whose_the_payments_are_is_known_before_the_newest_are_looked_at(world: World, stage: Reconcile) -> None:
    lists(world)
    await stage.once()
    began_s = world.clock.monotonic()
    await stage._step()
    assert world.clock.monotonic() - began_s >= TOOK_S, "it was asked"


# case: R7
async def test_what_it_found_is_counted_by_kind(world: World) -> None:
    await baselined(world)
    lists(world, orders=[order(1, "PAID"), order(2)], subscriptions=[subscription(1)])
    with capture_logs() as logs:
        report = await reconcile(world).once()
    assert report.found[Drift.UNKNOWN] == 2
    for drift in DRIFTED:
        assert counted_by(world.metrics, "drift", "default", drift.value) == report.found[drift]
    [line] = [one for one in logs if one["event"] == "reconcile_found_drift"]
    assert (line["unknown"], line["made"]) == (2, report.made)


# case: B18, B31, F29
@pytest.mark.parametrize("brake_min", [500, 0])
async def test_a_dry_run_says_how_much_would_be_published(world: World, brake_min: int) -> None:
    """It said "no drift" where the walk published what was read of each payment."""
    stage = reconcile(world, ReconcilePolicy(brake_min=brake_min, brake_share=0))
    await baselined(world)
    paid = [{"id": f"pay_{number}", "status": "SUCCEEDED"} for number in range(3)]
    lists(world, orders=[order(1)], payments=paid)
    dry, real = await stage.once(dry_run=True), await stage.once()
    assert (dry.drifted, dry.would_publish, dry.published) == (False, 4, 0)
    assert real.published == 4
    lists(world, orders=[order(1), order(2, "PAID"), order(3)], subscriptions=[subscription(1)], payments=paid)
    dry, real = await stage.once(dry_run=True), await stage.once()
    assert dry.would_publish == real.published == (3 if brake_min else 1)


# case: B30
async def test_what_the_first_walk_remembers_is_said_by_that_one_alone(world: World) -> None:
    lists(world, orders=[order(1, "PAID"), order(2)], subscriptions=[subscription(1)])
    stage, said = reconcile(world), []
    for dry_run in (True, False, True, False):
        with capture_logs() as logs:
            await stage.once(dry_run=dry_run)
        said.append([(one["remembered"], one["adopted"]) for one in logs if one["event"] == "reconcile_baseline"])
    assert said == [[], [(2, 1)], [], []]


async def test_a_dry_run_finds_nothing_absent_where_the_list_shows_all(world: World) -> None:
    # case: B21
    lists(world, subscriptions=[subscription(1), subscription(2)])
    stage = reconcile(world)
    await stage.once()
    world.clock.advance(10)
    absent = []
    for shown in ([1, 2], [1], []):
        lists(world, subscriptions=[subscription(number) for number in shown])
        absent.append((await stage.once(dry_run=True)).absent)
    assert absent == [0, 1, 2]


# case: B31
async def test_a_walk_that_is_braked_by_counting_alone_is_told_as_what_it_was(world: World) -> None:
    await baselined(world)
    lists(world, orders=[order(number, "PAID") for number in range(5)])
    stage = reconcile(world, ReconcilePolicy(held_back_max=2))
    report = await stage.once(max_changes=3)
    assert (report.braked, report.dry_run, report.made) == (True, False, 0)
    assert await seen(world) == []
    assert (await remembered(world)).braked


# case: B22
@pytest.mark.parametrize(("status", "paid"), [("PAID", 1), ("PENDING", 0)])
async def test_what_a_single_read_shows_paid_and_nameless_counts_as_paid(world: World, status: str, paid: int) -> None:
    await baselined(world)
    lists(world, orders=[{"id": "ord_1"}])
    world.service.records["/v1/orders/ord_1"] = {"id": "ord_1", "status": status}
    report = await reconcile(world).once()
    assert (report.unplaced, report.unplaced_paid) == (1, paid)


async def test_it_runs_until_it_is_told_to_stop(world: World) -> None:
    lists(world)
    stage, stop = reconcile(world), asyncio.Event()
    stop.set()
    await stage.run(stop)
