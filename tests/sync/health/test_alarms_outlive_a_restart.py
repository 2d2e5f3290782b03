"""Gauges: a restart forgets none, and who lost the lead shows none."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import Gauge
from sqlalchemy import Table, update

from consumer.clock import SystemClock
from consumer.ledger.reading import hints, sync_state
from consumer.ledger.tables import LeaseRow
from consumer.lists import bookmark as events_bookmark
from consumer.lists.bookmark import Bookmark
from consumer.payments import CircuitOpen, Credentials, CursorLoop, PaymentsClient
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill import silence
from consumer.sync.backfill.silence import DeliveryHealth
from consumer.sync.canary.stage import KINDS
from consumer.sync.health.gauges import FLAGS, TIMES
from consumer.sync.reconcile import state as reconcile
from consumer.sync.role import Sync, SyncPolicy
from consumer.telemetry.metrics import Metrics
from tests.support.ports import eventually
from tests.sync.conftest import World, counted_by, delivery
from tests.sync.health.test_every_number_is_on_the_metrics_page import counted
from tests.sync.test_a_dead_leader_is_replaced import role, running

LEASES: Table = LeaseRow.__table__
POLICY = SyncPolicy(lease_s=1.5)
RAISED = {
    "consumer_sync_webhooks_silent": 1,
    "consumer_sync_gap_open": 1,
    "consumer_sync_reconcile_braked": 1,
    "consumer_api_circuit_open": 1,
    "consumer_confirm_waiting": 1,
    "consumer_sync_events_history": 7,
}
AGES = (
    "consumer_sync_bookmark_age_seconds",
    "consumer_sync_last_reconcile_timestamp_seconds",
    "consumer_sync_events_history",
)
LOWERED = {name: 0 for name in (*RAISED, "consumer_sync_wrong_application") if name not in AGES}


LABELS = {
    "missing_here": [(kind,) for kind in KINDS],
    "last_seen": [(kind,) for kind in KINDS],
    "reconcile_unplaced": [("paid",), ("other",)],
}
"""What a gauge is told by beside the application."""


def test_every_gauge_of_the_leader_is_dropped_with_the_lead() -> None:
    # case: O6, B26
    elsewhere = {"credentials_missing", "held_up", "leader"}  # known to all; dropped by Watch, and by the role
    elsewhere |= {"unproved_bytes"}  # of who takes the deliveries in, leader or not
    metrics = Metrics()
    gauges = {name for name in counted() if isinstance(getattr(metrics, name), Gauge)} - elsewhere
    shown = {(name, *more) for name in gauges for more in LABELS.get(name, [()])}
    assert shown == {*FLAGS, *TIMES}


class Page:
    """The metrics page of a process whose API client tells of its circuit as the app's does."""

    def __init__(self, world: World) -> None:
        self.metrics = Metrics()
        circuit = self.metrics.circuit_open.labels("default")
        self.client = PaymentsClient(
            world.service.address,
            Credentials("svc_app_test", ["svc_sk_live_test"]),
            clock=SystemClock(),
            on_circuit=lambda state: circuit.set(int(state.is_open)),
        )
        api = ApplicationApi(application="default", client=self.client)
        self.sync: Sync = role(api, world.broker, world.database, "one", POLICY, self.metrics)

    def value(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"application": "default"})

    def shows(self, wanted: dict[str, int]) -> bool:
        assert {name: self.value(name) for name in wanted} == wanted
        return True


async def test_what_an_alert_counts_stands_at_0_before_anything_happened(world: World) -> None:
    """Prometheus sees no increase in a row that begins with its first count."""
    page = Page(world)
    async with page.client:
        registry = page.metrics.registry
        for status in ("order.status", "subscription.status"):
            labels = {"application": "default", "field": status}
            assert registry.get_sample_value("consumer_unknown_enums_total", labels) == 0
        labels = {"application": "default", "reason": "flooded"}
        assert registry.get_sample_value("consumer_quarantine_total", labels) == 0


async def _leave_alarms(world: World) -> None:
    """What a leader left behind that was alarmed three days ago."""
    ago = SystemClock().now() - timedelta(days=3)
    delivery_health = DeliveryHealth(silent_since=ago, gap_at=ago)
    reconciled = {"began": ago.isoformat(), "braked": True}
    kept = {
        events_bookmark.WALK: Bookmark(walked_at=ago).dump(),
        silence.WALK: delivery_health.dump(),
        reconcile.WALK: reconciled,
        sync_state.LEFT: {"events": 7},
    }
    async with world.database.transaction() as session:
        await hints.keep(session, [delivery(b"{}", 1, event_id="evt_1")], ago)
        for walk, state in kept.items():
            await sync_state.keep(session, "default", walk, state, token=0, now=ago)


async def _lead_goes_to_another(world: World, *, for_s: float) -> None:
    """As after a SIGSTOP for longer than the lease; then it is given back."""
    until = SystemClock().now() + timedelta(seconds=for_s)
    async with world.database.transaction() as session:
        await session.execute(update(LEASES).values(holder="another", token=LEASES.c.token + 1, until=until))


# case: O1, O3, B13, B26, B31
@pytest.mark.slow
async def test_the_leader_takes_alarms_up_from_the_ledger_and_drops_them_with_the_lead(world: World) -> None:
    await _leave_alarms(world)
    world.service.failing["*"] = 401
    page = Page(world)
    async with page.client, running(page.sync):
        await eventually(lambda: page.shows(RAISED), within_s=15, what="every alarm is raised, though no walk succeeds")
        age = page.value("consumer_sync_bookmark_age_seconds")
        assert age is not None
        assert age == pytest.approx(3 * 86400, abs=60)

        await _lead_goes_to_another(world, for_s=12)
        await eventually(lambda: page.shows(LOWERED), within_s=10, what="who does not lead knows of no alarm")
        assert [page.value(name) for name in AGES] == [None, None, None]
        assert {counted_by(page.metrics, name, "default", *labels) for name, *labels in FLAGS} == {0}

        await _lead_goes_to_another(world, for_s=-1)
        await eventually(lambda: page.shows(RAISED), within_s=15, what="with the lead they are known again")
        assert page.value("consumer_sync_bookmark_age_seconds") == pytest.approx(3 * 86400, abs=60)


# case: O1
@pytest.mark.slow
async def test_a_first_walk_that_never_comes_through_has_an_age_as_well(world: World) -> None:
    world.service.failing["*"] = 503
    page = Page(world)
    async with page.client, running(page.sync):
        found = await eventually(lambda: page.value("consumer_sync_bookmark_age_seconds"), within_s=15)
        await eventually(lambda: (page.value("consumer_sync_bookmark_age_seconds") or 0) > found, within_s=5)


# case: S4, S9
@pytest.mark.slow
async def test_a_secret_file_that_breaks_is_a_stage_in_trouble(world: World, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("svc_sk_live_good")
    page = Page(world)
    for name in ("events", "orders", "subscriptions", "payments"):
        world.service.lists[f"/v1/{name}"] = lambda cursor, limit: {"items": [], "next_cursor": None}
    credentials = Credentials("svc_app_test", secret_file=file)
    async with PaymentsClient(world.service.address, credentials, clock=SystemClock()) as client:
        api = ApplicationApi(application="default", client=client)
        sync = role(api, world.broker, world.database, "one", POLICY, page.metrics)
        one = sync.applications["default"]

        def held_up() -> float | None:
            labels = {"application": "default", "stage": "credentials"}
            return page.metrics.registry.get_sample_value("consumer_sync_held_up", labels)

        async with running(sync):
            await eventually(lambda: held_up() == 0, within_s=15)
            file.write_text("half a sec")
            await eventually(lambda: one.failures == {"credentials": "secret_file_broken"}, within_s=15)
            await eventually(lambda: held_up() == 1, within_s=5)
            file.write_text("svc_sk_live_new")
            await eventually(lambda: one.failures == {} and held_up() == 0, within_s=15)


# case: O3, S6
async def test_a_stage_that_waits_after_refused_credentials_is_in_no_trouble_once_they_are_taken(world: World) -> None:
    page = Page(world)
    one = page.sync.applications["default"]
    one.confirm.failure.failed(CircuitOpen(retry_after_s=5))
    one.backfill.failure.failed(CursorLoop())
    await page.client.circuit.refused(page.client.credentials.generation)
    assert one.failures == {"confirm": "circuit_open", "backfill": "cursor_loop"}
    await page.client.circuit.accepted()
    assert one.failures == {"backfill": "cursor_loop"}
