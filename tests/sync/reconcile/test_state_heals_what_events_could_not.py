"""Reconcile: state heals what events could not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from consumer.errors import WrongApplication
from consumer.events import Event, Source, Trust
from consumer.ledger.reading import read_requests, sync_state
from consumer.payments import AuthenticationError, ServerError
from consumer.sync.backfill import silence
from consumer.sync.reconcile.drift import Drift
from consumer.sync.reconcile.policy import ReconcilePolicy
from consumer.sync.reconcile.state import WALK
from consumer.sync.refresh.stage import Refresh
from tests.sync.conftest import World, counted_by
from tests.sync.reconciling import baselined, lists, order, reconcile, recorded, remembered, seen, subscription


async def test_a_paid_order_nobody_told_of_is_observed_once(world: World) -> None:
    # case: B18, B27, G3
    await baselined(world)
    lists(world, orders=[order(1)])
    stage = reconcile(world)
    await stage.once()
    lists(world, orders=[order(1, "PAID")])
    report = await stage.once()
    assert (report.drifted, report.found[Drift.CHANGED]) == (True, 1)
    assert await seen(world) == [("order:A-1", "PENDING"), ("order:A-1", "PAID")]
    found: list[Event] = await world.published()
    assert {(event.trust, event.source, event.type) for event in found} == {(Trust.READ, Source.READ, "order.observed")}
    again = await stage.once()
    assert (again.published, again.drifted) == (0, False)


async def test_an_unknown_subscription_is_adopted_and_an_ended_one_seen(world: World) -> None:
    # case: B19, B20
    await baselined(world)
    lists(world, subscriptions=[subscription(1), subscription(2, "PAST_DUE")])
    stage = reconcile(world)
    report = await stage.once()
    assert report.found[Drift.UNKNOWN] == 2
    lists(world, subscriptions=[subscription(1, "ENDED", end_reason="PAYER_CANCELED"), subscription(2, "PAST_DUE")])
    await stage.once()
    assert await seen(world) == [
        ("subscription:sub_1", "ACTIVE"),
        ("subscription:sub_2", "PAST_DUE"),
        ("subscription:sub_1", "ENDED"),
    ]


async def test_a_change_that_sends_no_event_is_seen_by_the_next_walk(world: World) -> None:
    # case: U25, A19
    await baselined(world)
    scheduled: dict[str, Any] = {"cancel_at_period_end": True, "cancel_reason": "PAYER_CANCELED"}
    lists(world, subscriptions=[subscription(1, **scheduled)])
    stage = reconcile(world)
    await stage.once()
    await recorded(world, "subscription.cancel_scheduled", "sub_1")
    lists(world, subscriptions=[subscription(1, **scheduled, merchant_cancel_requested=True)])
    assert (await stage.once()).found == {Drift.DETAIL: 1}
    *_, last = sorted(await world.published(), key=lambda event: event.data["data"]["version"])
    assert (last.key, last.data["data"]["record"]["merchant_cancel_requested"]) == ("subscription:sub_1", True)
    assert ReconcilePolicy().every <= timedelta(days=1)


async def test_full_last_pages_end_the_walk_and_nothing_is_taken_twice(world: World) -> None:
    # case: B14, B15, B17
    await baselined(world)
    lists(world, orders=[order(number, "PAID") for number in range(200)])
    report = await reconcile(world).once()
    assert (report.listed["order"], report.published) == (200, 200)
    assert world.service.calls["/v1/orders"] == 3


async def test_one_that_the_list_no_longer_shows_is_read_singly_and_never_judged(world: World) -> None:
    # case: B21, G7, S8
    lists(world, subscriptions=[subscription(1), subscription(2, "ENDED")])
    stage = reconcile(world)
    await stage.once()
    lists(world)
    world.clock.advance(60)
    report = await stage.once()
    assert report.absent == 1, "the ended one is of no interest"
    assert not report.drifted
    assert len(await seen(world)) == 2
    refresh = Refresh(world.app, world.publisher)
    await refresh.once()  # 404
    told = [event.type for event in await world.published() if event.type != "subscription.observed"]
    assert told == ["subscription.unreadable"], "whoever holds it for live shows that; nothing ends by it"
    assert counted_by(world.metrics, "reads_not_found", "default") == 1


async def test_a_list_item_without_the_needed_fields_is_read_by_its_id(world: World) -> None:
    # case: B22
    await baselined(world)
    lists(world, orders=[{"id": "ord_1"}, {"id": "ord_2"}], subscriptions=[{"id": "sub_1"}])
    world.service.records["/v1/orders/ord_1"] = order(1, "PAID")
    world.service.records["/v1/subscriptions/sub_1"] = subscription(1)
    report = await reconcile(world).once()
    assert sorted(await seen(world)) == [("order:A-1", "PAID"), ("subscription:sub_1", "ACTIVE")]
    assert report.unplaced == 1


async def test_a_single_read_that_fails_for_a_while_calls_no_order_nameless(world: World) -> None:
    # case: B22, C14
    await baselined(world)
    lists(world, orders=[{"id": "ord_1", "status": "PAID"}], subscriptions=[{"id": "sub_1"}])
    world.service.records["/v1/orders/ord_1"] = order(1, "PAID")
    world.service.records["/v1/subscriptions/sub_1"] = subscription(1)
    stage = reconcile(world)
    for failing in ("/v1/subscriptions/sub_1", "/v1/orders/ord_1"):
        world.service.failing = {failing: 503}
        with pytest.raises(ServerError):
            await stage.once()
        assert stage.report is not None
        assert stage.report.unplaced == 0
    world.service.failing = {}
    report = await stage.once()
    assert (report.unplaced, ("order:A-1", "PAID") in await seen(world)) == (0, True)


async def test_lists_and_single_reads_of_different_shape_do_not_call_each_other_drift(world: World) -> None:
    # case: B22, B31
    lists(world, subscriptions=[subscription(1)])
    world.service.records["/v1/subscriptions/sub_1"] = subscription(1, period_end="2026-02-01")
    async with world.database.transaction() as session:
        from consumer.plugin import ReadRequest

        await read_requests.ask(
            session, "default", [ReadRequest(kind="subscription", object_id="sub_1")], world.clock.now()
        )
    await Refresh(world.app, world.publisher).once()
    stage = reconcile(world)
    assert (await stage.once()).published == 0
    lists(world, subscriptions=[subscription(1, "PAST_DUE")])
    report = await stage.once()
    assert (report.published, report.found[Drift.CHANGED]) == (1, 1)


async def test_a_dry_run_reports_and_changes_nothing(world: World) -> None:
    # case: B31
    lists(world, orders=[order(1)], subscriptions=[subscription(1)])
    stage = reconcile(world)
    await stage.once()
    before = await seen(world)
    lists(world, orders=[order(1, "PAID"), order(2, "PAID")], subscriptions=[])
    report = await stage.once(dry_run=True)
    assert report.drifted
    assert [(one.object_id, one.drift, one.before, one.after) for one in report.differences] == [
        ("A-1", Drift.CHANGED, "PENDING", "PAID"),
        ("A-2", Drift.UNKNOWN, "", "PAID"),
    ]
    assert await seen(world) == before
    async with world.database.reading() as session:
        assert await read_requests.due(session, world.clock.now() + timedelta(days=1), 10) == []


async def test_the_baseline_remembers_old_orders_and_acts_only_on_what_changes_from_then_on(world: World) -> None:
    # case: B30
    lists(world, orders=[order(1, "PAID"), order(2), order(3, "PAID")], subscriptions=[subscription(1)])
    await recorded(world, "order.expired", "A-3")
    stage = reconcile(world)
    report = await stage.once()
    assert (report.baseline, report.adopted, report.found[Drift.UNKNOWN]) == (2, 1, 0)
    assert sorted(await seen(world)) == [("order:A-3", "PAID"), ("subscription:sub_1", "ACTIVE")]
    lists(world, orders=[order(1, "PAID"), order(2, "PAID"), order(3, "PAID")], subscriptions=[subscription(1)])
    await stage.once()
    assert ("order:A-2", "PAID") in await seen(world)
    assert ("order:A-1", "PAID") not in await seen(world)


async def test_payments_are_observed_so_that_orphan_money_shows(world: World) -> None:
    # case: B33, F28
    await baselined(world)
    lists(world, payments=[{"id": "pay_1", "status": "SUCCEEDED", "order_id": "A-9"}])
    await reconcile(world).once()
    [event] = await world.published()
    assert (event.type, event.key) == ("payment.observed", "payment:pay_1")


async def test_credentials_of_another_application_are_refused_before_anything_is_written(world: World) -> None:
    # case: B32, S7
    lists(world, orders=[order(1, "PAID")])
    stage = reconcile(world)
    await stage.once()
    before = await seen(world)
    world.service.records["/v1/application"] = {"id": "svc_app_other"}
    lists(world, orders=[order(7, "PAID")])
    with pytest.raises(WrongApplication):
        await stage.once()
    assert await seen(world) == before
    assert counted_by(world.metrics, "wrong_application", "default") == 1


async def test_an_address_that_does_not_show_the_application_does_not_stop_the_walk(world: World) -> None:
    # case: U10, U18
    await baselined(world)
    del world.service.records["/v1/application"]
    lists(world, orders=[order(1, "PAID")])
    assert (await reconcile(world).once()).published == 1


async def test_401_half_way_ends_the_walk_and_the_next_one_does_it_all(world: World) -> None:
    # case: B25, G7
    lists(world, orders=[order(number, "PAID") for number in range(150)])
    world.service.failing["/v1/orders"] = 401
    stage = reconcile(world)
    with pytest.raises(AuthenticationError):
        await stage.once()
    async with world.database.reading() as session:
        assert await sync_state.load(session, "default", WALK) is None
    assert stage.report is not None
    assert (stage.report.complete, stage.report.listed["order"]) == (False, 0)
    world.service.failing.clear()
    world.clock.advance(31)
    assert (await stage.once()).baseline == 150


@pytest.mark.parametrize("is_told", [True, False])
async def test_what_was_observed_and_lost_with_its_log_is_observed_again(world: World, is_told: bool) -> None:
    """A paid order that waited for that answer was held for ever: reconcile found it as it had been observed last. What
    no event tells of is remembered history, which was never published."""
    # case: B13, F24, G3
    await baselined(world)
    if is_told:
        await recorded(world, "order.paid", "A-1")
    lists(world, orders=[order(1, "PAID")])
    stage = reconcile(world)
    await stage.once()
    before = await seen(world)
    await stage.once()
    assert await seen(world) == before == [("order:A-1", "PAID")]
    async with world.database.transaction() as session:
        await silence.note_gap(session, "default", at=world.clock.now(), token=1)
    await stage.once()
    assert await seen(world) == before * (2 if is_told else 1)
    await world.work()
    async with world.database.transaction() as session:
        await silence.note_gap(session, "default", at=world.clock.now(), token=1)
    await stage.once()
    assert len(await seen(world)) == len(before) * (2 if is_told else 1), "it has come"


async def test_it_is_due_at_first_after_its_time_and_after_a_gap(world: World) -> None:
    # case: B13, B29, U7
    lists(world)
    stage = reconcile(world, ReconcilePolicy(every=timedelta(hours=6)))

    async def is_due() -> bool:
        return stage._is_due(await remembered(world))

    assert await is_due()
    await stage.once()
    assert not await is_due()
    world.clock.advance(60)
    async with world.database.transaction() as session:
        await silence.note_walk(session, "default", recovered=(), gap=True, token=1, now=world.clock.now())
    assert await is_due()
    world.clock.advance(1)
    await stage.once()
    assert not await is_due()
    async with world.database.reading() as session:
        assert (await silence.DeliveryHealth.of(session, "default")).gap_at is None
    world.clock.advance(6 * 3600)
    assert await is_due()
