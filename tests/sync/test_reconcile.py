"""Reconcile: state heals what events could not, and too much at once is asked about first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from consumer.errors import WrongApplication
from consumer.events import Event, Source, Trust
from consumer.ledger import bookmarks, events, reads
from consumer.payments import AuthenticationError
from consumer.sync import sense
from consumer.sync.drift import Drift, compare
from consumer.sync.observation import Observation
from consumer.sync.reconcile import WALK, Reconcile, ReconcilePolicy
from consumer.sync.refresh import Refresh
from tests.sync.conftest import World
from tests.sync.service import EventsList, Json


def reconcile(world: World, policy: ReconcilePolicy | None = None) -> Reconcile:
    return Reconcile(
        world.reader,
        world.database,
        world.outlet,
        clock=world.clock,
        token=lambda: 1,
        figures=world.figures,
        policy=policy,
    )


def listing(items: list[Json]) -> EventsList:
    """A numeric list with the rule of the full last page (case B15)."""

    def page(cursor: str | None, limit: int) -> Json:
        start = int(cursor or 0)
        shown = items[start : start + limit]
        return {"items": shown, "next_cursor": start + limit if len(shown) == limit else None}

    return page


def lists(
    world: World,
    *,
    orders: list[Json] | None = None,
    subscriptions: list[Json] | None = None,
    payments: list[Json] | None = None,
) -> None:
    world.service.lists["/v1/orders"] = listing(orders or [])
    world.service.lists["/v1/subscriptions"] = listing(subscriptions or [])
    world.service.lists["/v1/payments"] = listing(payments or [])


def order(number: int, status: str = "PENDING") -> Json:
    return {"id": f"ord_{number}", "order_id": f"A-{number}", "status": status}


def subscription(number: int, status: str = "ACTIVE", **more: Any) -> Json:
    return {"id": f"sub_{number}", "status": status, **more}


async def seen(world: World) -> list[tuple[str, str]]:
    found = await world.published()
    by_version = sorted(found, key=lambda event: event.data["data"]["version"])
    return [(event.key, event.data["data"]["record"]["status"]) for event in by_version]


async def recorded(world: World, event_type: str, order_id: str) -> None:
    """The ledger has an event of the order."""
    event = Event(
        application="default", id=f"evt_{order_id}", type=event_type, key=f"order:{order_id}", trust=Trust.READ,
        source=Source.BACKFILL, raw=b"{}", received_at=world.clock.now(), order_id=order_id,
    )  # fmt: skip
    async with world.database.transaction() as session:
        await events.record(session, [event], world.clock.now())


async def test_a_paid_order_nobody_told_of_is_observed_once(world: World) -> None:
    # case: B18, B27, G3
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


async def test_an_unknown_subscription_is_adopted_and_an_ended_one_seen(world: World) -> None:
    # case: B19, B20
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


async def test_full_last_pages_end_the_walk_and_nothing_is_taken_twice(world: World) -> None:
    # case: B14, B15, B17
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
    refresh = Refresh(world.reader, world.database, world.outlet, clock=world.clock, figures=world.figures)
    await refresh.once()  # 404
    told = [event.type for event in await world.published() if event.type != "subscription.observed"]
    assert told == ["subscription.unreadable"], "whoever holds it for live shows that; nothing ends by it"
    assert world.figures.value("reads_not_found", "default") == 1


async def test_a_list_item_without_the_needed_fields_is_read_by_its_id(world: World) -> None:
    # case: B22
    lists(world, orders=[{"id": "ord_1"}, {"id": "ord_2"}], subscriptions=[{"id": "sub_1"}])
    world.service.records["/v1/orders/ord_1"] = order(1, "PAID")
    world.service.records["/v1/subscriptions/sub_1"] = subscription(1)
    report = await reconcile(world).once()
    assert sorted(await seen(world)) == [("order:A-1", "PAID"), ("subscription:sub_1", "ACTIVE")]
    assert report.unplaced == 1


async def test_lists_and_single_reads_of_different_shape_do_not_call_each_other_drift(world: World) -> None:
    # case: B22, B31
    lists(world, subscriptions=[subscription(1)])
    world.service.records["/v1/subscriptions/sub_1"] = subscription(1, period_end="2026-02-01")
    async with world.database.transaction() as session:
        from consumer.plugin import ReadRequest

        await reads.ask(session, "default", [ReadRequest(kind="subscription", object_id="sub_1")], world.clock.now())
    await Refresh(world.reader, world.database, world.outlet, clock=world.clock).once()
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
        ("A-1", Drift.CHANGED, "PENDING||||", "PAID||||"),
        ("A-2", Drift.UNKNOWN, "", "PAID||||"),
    ]
    assert await seen(world) == before
    async with world.database.reading() as session:
        assert await reads.due(session, world.clock.now() + timedelta(days=1), 10) == []


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
        due = await reads.due(session, world.clock.now(), 100)
    assert due == [], "the brake is not walked around by single reads"
    assert (await stage.once(max_changes=29)).braked
    assert (await stage.once(max_changes=30)).published == 30


async def test_more_changes_than_wait_in_memory_are_made_when_an_operator_allows_them(world: World) -> None:
    # case: B31
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


async def test_the_baseline_remembers_old_orders_and_acts_only_on_what_changes_from_then_on(world: World) -> None:
    # case: B30
    lists(world, orders=[order(1, "PAID"), order(2), order(3, "PAID")], subscriptions=[subscription(1)])
    await recorded(world, "order.expired", "A-3")
    stage = reconcile(world)
    report = await stage.once(baseline=True)
    assert report.baseline == 2
    assert sorted(await seen(world)) == [("order:A-3", "PAID"), ("subscription:sub_1", "ACTIVE")]
    lists(world, orders=[order(1, "PAID"), order(2, "PAID"), order(3, "PAID")], subscriptions=[subscription(1)])
    await stage.once()
    assert ("order:A-2", "PAID") in await seen(world)
    assert ("order:A-1", "PAID") not in await seen(world)


async def test_payments_are_observed_so_that_orphan_money_shows(world: World) -> None:
    # case: B33, F28
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
    assert world.figures.value("wrong_application", "default") == 1


async def test_an_address_that_does_not_show_the_application_does_not_stop_the_walk(world: World) -> None:
    # case: U10, U18
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
        assert await bookmarks.load(session, "default", WALK) is None
    world.service.failing.clear()
    world.clock.advance(31)
    assert (await stage.once()).published == 150


async def test_it_is_due_at_first_after_its_time_and_after_a_gap(world: World) -> None:
    # case: B13, B29
    lists(world)
    stage = reconcile(world, ReconcilePolicy(every=timedelta(hours=6)))
    assert await stage._is_due() == (True, True)
    await stage.once(baseline=True)
    assert await stage._is_due() == (False, False)
    world.clock.advance(60)
    async with world.database.transaction() as session:
        await sense.note_walk(session, "default", recovered=(), gap=True, token=1, now=world.clock.now())
    assert await stage._is_due() == (True, False)
    world.clock.advance(1)
    await stage.once()
    assert await stage._is_due() == (False, False)
    async with world.database.reading() as session:
        assert (await sense.condition(session, "default")).gap_at is None
    world.clock.advance(6 * 3600)
    assert await stage._is_due() == (True, False)


def test_an_older_read_never_counts_as_drift() -> None:
    # case: A40

    def read(version: int, status: str) -> Observation:
        from tests.sync.conftest import SteppedClock

        return Observation(
            application="default", kind="subscription", object_id="sub_1", version=version,
            read_at=SteppedClock().now(), record={"id": "sub_1", "status": status},
        )  # fmt: skip

    assert compare(read(3, "ACTIVE"), read(5, "ENDED").observed, has_events=True) is Drift.NONE
    assert compare(read(6, "ENDED"), read(5, "ACTIVE").observed, has_events=True) is Drift.CHANGED
    assert compare(read(1, "ACTIVE"), None, has_events=True) is Drift.FIRST
    assert compare(read(1, "ACTIVE"), None, has_events=False) is Drift.UNKNOWN
