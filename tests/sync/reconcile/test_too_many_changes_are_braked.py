"""Reconcile's brake: what weighs is made when it is known how much there is in all lists together, or not at all."""

from __future__ import annotations

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from consumer.errors import BrokerUnavailable
from consumer.ledger.reading import read_requests
from consumer.payments import PaymentsError
from consumer.sync.backfill import silence
from consumer.sync.publisher import EventPublisher
from consumer.sync.reconcile.drift import Drift
from consumer.sync.reconcile.policy import ReconcilePolicy
from tests.sync.conftest import World, counted_by
from tests.sync.reconciling import baselined, listing, lists, order, reconcile, recorded, remembered, seen, subscription


async def test_what_an_event_told_since_the_last_read_is_no_drift_and_not_braked(world: World) -> None:
    # case: B31
    lists(world, orders=[order(1), order(2), order(3)])
    stage = reconcile(world)
    await stage.once()
    await recorded(world, "order.paid", "A-1")
    await recorded(world, "order.expired", "A-2")
    lists(world, orders=[order(1, "PAID"), order(2), order(3)])
    report = await stage.once(dry_run=True)
    assert (report.drifted, report.found[Drift.TOLD], report.differences) == (False, 1, [])
    report = await stage.once(max_changes=0)
    assert (report.braked, report.published) == (False, 1)
    lists(world, orders=[order(1, "PAID"), order(2, "PAID"), order(3, "PAID")])
    report = await stage.once(dry_run=True)
    assert (report.drifted, report.found[Drift.CHANGED]) == (True, 2), "no event said that these are paid"


@pytest.mark.parametrize("walks_again", [True, False])
async def test_what_an_event_told_before_the_last_walk_explains_no_later_change(
    world: World, walks_again: bool
) -> None:
    # case: B31
    lists(world, subscriptions=[subscription(1)])
    stage = reconcile(world)
    await stage.once()
    world.clock.advance(10)
    await recorded(world, "subscription.past_due", "sub_1")
    world.clock.advance(10)
    if walks_again:
        assert (await stage.once()).drifts == 0, "the list shows it as it was"
    world.clock.advance(10)
    lists(world, subscriptions=[subscription(1, "PAST_DUE")])
    report = await stage.once(dry_run=True)
    assert report.found[Drift.CHANGED if walks_again else Drift.TOLD] == 1


async def test_more_changes_than_allowed_are_not_made_at_all(world: World) -> None:
    # case: B31
    lists(world, subscriptions=[subscription(number) for number in range(30)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10, brake_share=0.1))
    await stage.once()
    lists(world, subscriptions=[subscription(number, "ENDED") for number in range(30)])
    report = await stage.once()
    assert report.braked
    assert len(await seen(world)) == 30
    async with world.database.reading() as session:
        due = await read_requests.due(session, world.clock.now(), 100)
    assert due == [], "the brake is not walked around by single reads"
    assert (await stage.once(max_changes=29)).braked
    assert (await stage.once(max_changes=30)).published == 30


async def test_more_changes_than_wait_in_memory_are_made_when_an_operator_allows_them(world: World) -> None:
    # case: B31
    await baselined(world)
    lists(world, orders=[order(number) for number in range(250)])
    stage = reconcile(world, ReconcilePolicy(held_back_max=20))
    await stage.once()
    lists(world, orders=[order(number, "PAID") for number in range(250)])
    assert (await stage.once()).braked
    refused = await stage.once(max_changes=249)
    assert (refused.braked, refused.published, refused.found[Drift.CHANGED]) == (True, 0, 250)
    assert len(await seen(world)) == 250
    tried = await stage.once(dry_run=True, max_changes=250)
    assert (tried.braked, tried.published, tried.found[Drift.CHANGED]) == (False, 0, 250)
    report = await stage.once(max_changes=250)
    assert (report.braked, report.published, report.found[Drift.CHANGED]) == (False, 250, 250)
    assert (report.listed["order"], len(report.differences)) == (250, 250)
    assert (await stage.once()).published == 0


async def test_a_list_that_grows_between_the_passes_does_not_lift_the_limit(world: World) -> None:
    # case: B31
    lists(world, orders=[order(number) for number in range(250)])
    stage = reconcile(world, ReconcilePolicy(held_back_max=20))
    await stage.once()
    many = listing([order(number, "PAID") for number in range(250)])
    few = listing([order(number, "PAID" if number < 30 else "PENDING") for number in range(250)])
    before = world.service.calls["/v1/orders"]
    world.service.lists["/v1/orders"] = lambda cursor, limit: (
        few if world.service.calls["/v1/orders"] <= before + 3 else many
    )(cursor, limit)
    report = await stage.once(max_changes=30)
    assert (report.braked, report.published) == (True, 0)


async def test_expiries_that_events_told_of_neither_brake_a_walk_nor_keep_it_from_healing(world: World) -> None:
    # case: B31, B18, U12
    await baselined(world)
    lists(world, orders=[order(number) for number in range(40)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    await stage.once()
    world.clock.advance(86_400)
    await recorded(world, "order.expired", *(f"A-{number}" for number in range(20)))
    await recorded(world, "checkout.session.canceled", *(f"A-{number}" for number in range(20, 39)))
    lapsed = [order(number, "EXPIRED") for number in range(39)]
    lists(world, orders=[*lapsed, order(39, "PAID")])
    report = await stage.once()
    assert (report.braked, report.found[Drift.TOLD], report.found[Drift.CHANGED], report.made) == (False, 39, 1, 1)
    assert ("order:A-39", "PAID") in await seen(world)


async def test_what_weighs_nothing_is_kept_by_a_braked_walk_so_the_next_one_does_not_find_it_again(
    world: World,
) -> None:
    # case: B31
    await baselined(world)
    lists(world, orders=[order(number) for number in range(60)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    await stage.once()
    paid = [order(number, "PAID") for number in range(20)]
    lists(world, orders=[*paid, *(order(number, "EXPIRED") for number in range(20, 60))])
    report = await stage.once()
    assert (report.braked, report.changes["order"], report.found[Drift.CHANGED]) == (True, 20, 60)
    assert [status for _, status in await seen(world)].count("PAID") == 0
    await recorded(world, "order.paid", *(f"A-{number}" for number in range(15)))
    report = await stage.once()
    assert (report.braked, report.found[Drift.TOLD], report.found[Drift.CHANGED], report.made) == (False, 15, 5, 5)


async def test_a_paid_order_of_which_only_other_events_are_known_is_drift_and_counts(world: World) -> None:
    # case: B31, B18, F18
    await baselined(world)
    await recorded(world, "checkout.session.canceled", "A-1")
    lists(world, orders=[order(1, "PAID")])
    stage = reconcile(world)
    tried = await stage.once(dry_run=True)
    assert [(one.object_id, one.drift, one.after) for one in tried.differences] == [("A-1", Drift.CHANGED, "PAID")]
    refused = await stage.once(max_changes=0)
    assert (refused.braked, await seen(world)) == (True, [])
    assert (await stage.once()).made == 1
    assert await seen(world) == [("order:A-1", "PAID")]


async def test_one_limit_holds_for_all_lists_together(world: World) -> None:
    # case: B31
    await baselined(world)
    lists(world, orders=[order(number) for number in range(8)], subscriptions=[subscription(1)])
    stage = reconcile(world, ReconcilePolicy(held_back_max=20))
    await stage.once()
    before = await seen(world)
    lists(
        world,
        orders=[order(number, "PAID") for number in range(8)],
        subscriptions=[subscription(1, "ENDED")],
        payments=[{"id": "pay_1", "status": "SUCCEEDED"}],
    )
    report = await stage.once(max_changes=8)
    assert (report.braked, report.made, dict(report.changes)) == (
        True,
        0,
        {"subscription": 1, "order": 8},
    )
    assert [one for one in await seen(world) if one not in before] == [("payment:pay_1", "SUCCEEDED")]
    assert (await stage.once(max_changes=9)).made == 9


async def test_too_many_in_one_list_hold_back_the_changes_of_the_others(world: World) -> None:
    # case: B31
    await baselined(world)
    lists(world, orders=[order(number) for number in range(30)], subscriptions=[subscription(1)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    await stage.once()
    lists(world, orders=[order(number, "PAID") for number in range(30)], subscriptions=[subscription(1, "ENDED")])
    report = await stage.once()
    assert (report.braked, report.made) == (True, 0)
    assert ("subscription:sub_1", "ENDED") not in await seen(world)


async def test_what_was_made_before_the_limit_was_reached_is_told(world: World) -> None:
    # case: B31
    await baselined(world)
    lists(world, orders=[order(number) for number in range(250)])
    stage = reconcile(world, ReconcilePolicy(held_back_max=20))
    await stage.once()
    few = listing([order(number, "PAID" if number < 30 else "PENDING") for number in range(250)])
    many = listing([order(number, "PAID" if number < 30 or number > 200 else "PENDING") for number in range(250)])
    before = world.service.calls["/v1/orders"]
    world.service.lists["/v1/orders"] = lambda cursor, limit: (
        few if world.service.calls["/v1/orders"] <= before + 3 else many
    )(cursor, limit)
    report = await stage.once(max_changes=30)
    assert (report.braked, report.made, report.published) == (True, 30, 30)


async def test_a_braked_walk_is_made_again_sooner_as_events_may_have_told_meanwhile(world: World) -> None:
    # case: B31
    await baselined(world)
    lists(world, orders=[order(number) for number in range(30)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    await stage.once()
    lists(world, orders=[order(number, "PAID") for number in range(30)])
    assert (await stage.once()).braked
    await stage._step()
    assert counted_by(world.metrics, "reconcile_braked", "default") == 1
    await recorded(world, "order.paid", *(f"A-{number}" for number in range(30)))
    world.clock.advance(3600)
    await stage._step()
    assert (await remembered(world)).braked is False
    assert counted_by(world.metrics, "reconcile_braked", "default") == 0


async def test_open_checkouts_of_a_healthy_shop_are_no_drift(world: World) -> None:
    # case: B31
    await baselined(world)
    lists(world, orders=[order(number) for number in range(20)], payments=[{"id": "pay_1", "status": "SUCCEEDED"}])
    stage = reconcile(world)
    assert not (await stage.once(dry_run=True)).drifted
    report = await stage.once(max_changes=0)
    assert (report.braked, report.found[Drift.FIRST]) == (False, 21)


async def test_a_paid_order_without_the_merchants_id_is_counted(world: World) -> None:
    # case: B22
    await baselined(world)
    nameless = {"id": "ord_9", "status": "PAID"}
    world.service.records["/v1/orders/ord_9"] = nameless
    lists(world, orders=[nameless, {"id": "ord_8", "status": "PENDING"}])
    report = await reconcile(world).once()
    assert (report.unplaced, report.unplaced_paid, report.unplaced_ids) == (2, 1, ["ord_9", "ord_8"])
    shown = [counted_by(world.metrics, "reconcile_unplaced", "default", state) for state in ("paid", "other")]
    assert shown == [1, 1]


async def test_a_dry_run_tells_what_the_list_no_longer_shows(world: World) -> None:
    # case: B21, B31
    await baselined(world)
    lists(world, subscriptions=[subscription(1), subscription(2), subscription(3, "ENDED")])
    stage = reconcile(world)
    await stage.once()
    world.clock.advance(60)
    lists(world, subscriptions=[subscription(1)])
    assert (await stage.once(dry_run=True)).absent == 1
    async with world.database.reading() as session:
        assert await read_requests.due(session, world.clock.now(), 10) == []


async def test_the_limit_that_a_dry_run_advises_is_enough(world: World) -> None:
    # case: B31
    await baselined(world)
    lists(world, orders=[order(number) for number in range(20)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    await stage.once()
    lists(world, orders=[order(number, "PAID") for number in range(25)])
    tried = await stage.once(dry_run=True)
    assert (tried.braked, tried.changes["order"], tried.limit) == (True, 25, 25), "five of them nobody has heard of"
    async with world.database.transaction() as session:
        await silence.note_walk(session, "default", recovered=(), gap=True, token=1, now=world.clock.now())
    tried = await stage.once(dry_run=True)
    assert (tried.braked, tried.changes["order"], tried.limit) == (True, 20, 25), "a gap explains those five"
    assert (await stage.once(max_changes=tried.limit - 1)).limit == 25
    assert (await stage.once(max_changes=tried.limit)).made == 25


async def test_an_event_that_is_recorded_after_a_braked_walk_still_tells(world: World) -> None:
    # case: B31
    lists(world, subscriptions=[subscription(number) for number in range(20)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    await stage.once()
    lists(world, subscriptions=[subscription(number, "PAST_DUE") for number in range(20)])
    world.clock.advance(60)
    received_at = world.clock.now()
    world.clock.advance(60)
    assert (await stage.once()).braked
    await recorded(world, "subscription.past_due", *(f"sub_{number}" for number in range(20)), at=received_at)
    report = await stage.once()
    assert (report.braked, report.found[Drift.TOLD]) == (False, 20)


@pytest.mark.parametrize("limit", [None, 5])
async def test_orders_that_cannot_be_read_keep_no_subscription_from_healing(world: World, limit: int | None) -> None:
    # case: B20, B31
    await baselined(world)
    lists(world, subscriptions=[subscription(1)])
    stage = reconcile(world)
    await stage.once()
    lists(world, subscriptions=[subscription(1, "ENDED")])
    world.service.failing["/v1/orders"] = 404
    with pytest.raises(PaymentsError):
        await stage.once(max_changes=limit)
    healed = ("subscription:sub_1", "ENDED") in await seen(world)
    assert healed is (limit is None), "who set a limit for both lists is not taken at half his word"
    assert stage.report is not None
    assert (stage.report.made, stage.report.complete) == (int(healed), False)


async def test_what_an_event_told_still_counts_as_told_after_a_broker_that_was_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: B31
    lists(world, subscriptions=[subscription(number) for number in range(20)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10))
    await stage.once()
    world.clock.advance(60)
    await recorded(world, "subscription.past_due", *(f"sub_{number}" for number in range(20)))
    world.clock.advance(60)
    lists(world, subscriptions=[subscription(number, "PAST_DUE") for number in range(20)])

    async def away(*_: object, **__: object) -> None:
        raise BrokerUnavailable()

    with monkeypatch.context() as patch:
        patch.setattr(EventPublisher, "publish", away)
        with pytest.raises(BrokerUnavailable):
            await stage.once()
    world.clock.advance(60)
    report = await stage.once()
    assert (report.braked, report.found[Drift.TOLD], report.found[Drift.CHANGED]) == (False, 20, 0)


async def test_a_walk_braked_hour_by_hour_is_said_at_growing_intervals_and_its_end(world: World) -> None:
    # case: B31, O1
    lists(world, orders=[order(number) for number in range(30)])
    stage = reconcile(world, ReconcilePolicy(brake_min=10, braked_again=timedelta(seconds=50)))
    await stage.once()
    nameless = {"id": "ord_9", "status": "PAID"}
    lists(world, orders=[*(order(number, "PAID") for number in range(30)), nameless])
    with capture_logs() as logs:
        await stage.once()
        for _ in range(8):
            world.clock.advance(50)
            await stage._step()
        await recorded(world, "order.paid", *(f"A-{number}" for number in range(30)))
        lists(world, orders=[order(number, "PAID") for number in range(30)])
        world.clock.advance(50)
        await stage._step()
    for word in ("reconcile_braked", "reconcile_found_unplaced"):
        told = [(one["event"], one["times"]) for one in logs if one["event"].startswith(word)]
        assert told == [(word, 1), (word, 3), (word, 6), (f"{word}_over", 9)]


async def test_what_braked_a_walk_is_logged_with_how_much_of_what(world: World) -> None:
    # case: B31
    await baselined(world)
    lists(world, orders=[order(1, "PAID"), {"id": "ord_9", "status": "PAID"}])
    with capture_logs() as logs:
        await reconcile(world).once(dry_run=True, max_changes=0)
        await reconcile(world).once(max_changes=0)
    errors = [one for one in logs if (one["log_level"], one["event"]) == ("error", "reconcile_braked")]
    names = ("dry_run", "changes", "made", "changed", "unknown")
    assert [tuple(one[name] for name in names) for one in errors] == [(False, 1, 0, 0, 1)]
    nameless = [(one["paid"], one["ids"]) for one in logs if one["event"] == "reconcile_found_unplaced"]
    assert nameless == [(1, ["ord_9"])] * 2
