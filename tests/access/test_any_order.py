"""Any permutation, duplication and loss, then one reconcile: the service's own state, each change announced once."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumer.events import Event
from handlers.access.tables import ENTITLEMENTS, FINDINGS, SUBSCRIPTIONS
from tests.access.history import (
    SESSION,
    Service,
    by_session,
    denials,
    readings,
    reconcile,
    services,
    session_readings,
    webhooks,
)
from tests.support.handling.projections import READS, Projections
from tests.support.ledger.shared import SharedLedger

MODULE = "handlers.access.handler"
HISTORIES = int(os.environ.get("CONSUMER_TEST_HISTORIES", "300"))  # `make chaos` asks for thousands
STATE = ("status", "end_reason", "cancel_at_period_end", "merchant_cancel_requested", "customer", "price_id")


def delivered(data: Any, service: Service, application: str) -> list[Event]:
    """What reaches us of a history: any part of it, any number of times, in any order."""
    happened = webhooks(service, application, thin=data.draw(st.booleans(), label="thin"))
    reads = data.draw(st.lists(st.sampled_from(readings(service, application)), max_size=5), label="reads")
    kept = data.draw(st.lists(st.sampled_from(happened), max_size=2 * len(happened)), label="kept")
    denied = data.draw(st.lists(st.sampled_from(denials(service, application)), max_size=2), label="denied")
    return list(data.draw(st.permutations(kept + reads + denied), label="order"))


async def live_through(
    shared_ledger: SharedLedger, application: str, service: Service, events: list[Event]
) -> Projections:
    shop = Projections(shared_ledger.database, MODULE, now=service.now, application=application)
    await shop.feed_together(events)
    await shop.relay()
    await shop.feed_together(reconcile(service, application))
    await shop.relay()
    return shop


async def check(shop: Projections, application: str, service: Service) -> None:
    rows = await shop.rows(SUBSCRIPTIONS, application=application)
    assert {row["subscription_id"] for row in rows} == set(service.subs)
    for row in rows:
        truth = service.subs[row["subscription_id"]]
        wanted = (truth.status, truth.end_reason, truth.cancel_at_period_end, truth.merchant_cancel_requested)
        assert tuple(row[name] for name in STATE) == (*wanted, "cus_1", "svc_price_monthly")
        assert not row["provisional"]
        if row["charged_after_end"]:
            assert row["subscription_id"] in service.late_charges, "no false alarm about money"
    announced = [one.type for one in shop.of_type("access.granted", "access.revoked")]
    assert announced == [["access.granted", "access.revoked"][n % 2] for n in range(len(announced))]
    if service.gaps == 0 and service.has_access:
        assert announced == ["access.granted"], "the customer never lost access"
    await shop.pass_time(minutes=15)
    found = await shop.rows(ENTITLEMENTS, application=application)
    assert any(row["allowed"] for row in found) == service.has_access
    announced = [one.type for one in shop.of_type("access.granted", "access.revoked")]
    assert len(announced) % 2 == service.has_access


def examine(shared_ledger: SharedLedger, service: Service, data: Any) -> None:
    application = next(shared_ledger.names)
    events = delivered(data, service, application)

    async def run() -> None:
        shop = await live_through(shared_ledger, application, service, events)
        await check(shop, application, service)

    shared_ledger.runner.run(run())


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(service=services(), data=st.data())
def test_whatever_arrives_ends_in_the_services_own_state(
    shared_ledger: SharedLedger, service: Service, data: Any
) -> None:
    # case: G1, G2, G3, G4, G7, G11, A24, A25, A26
    examine(shared_ledger, service, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=HISTORIES, deadline=None, suppress_health_check=list(HealthCheck))
@given(service=services(), data=st.data())
def test_whatever_arrives_in_thousands_of_histories(shared_ledger: SharedLedger, service: Service, data: Any) -> None:
    # case: G1, G2, G3, G4, G7, G11
    examine(shared_ledger, service, data)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(service=services(), data=st.data())
def test_replaying_all_of_it_changes_nothing(shared_ledger: SharedLedger, service: Service, data: Any) -> None:
    # case: G10, R1, R6
    application = next(shared_ledger.names)
    events = delivered(data, service, application)

    async def run() -> None:
        shop = await live_through(shared_ledger, application, service, events)
        await shop.pass_time(minutes=15)
        before = [await shop.rows(table, application=application) for table in (SUBSCRIPTIONS, ENTITLEMENTS)]
        announced = len(shop.of_type("access.granted", "access.revoked"))
        for event in events:
            await shop.force(event)
        await shop.relay()
        after = [await shop.rows(table, application=application) for table in (SUBSCRIPTIONS, ENTITLEMENTS)]
        assert _without_flags(after) == _without_flags(before)
        assert len(shop.of_type("access.granted", "access.revoked")) == announced

    shared_ledger.runner.run(run())


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(service=services(), data=st.data())
def test_a_customer_whom_only_the_session_names_is_found_in_any_order(
    shared_ledger: SharedLedger, service: Service, data: Any
) -> None:
    # case: A36, U10, G1
    application = next(shared_ledger.names)
    happened = webhooks(service, application, thin=True)
    reads = [by_session(one) for one in readings(service, application)]
    facts = happened + reads + session_readings(service, application)
    events = data.draw(st.lists(st.sampled_from(facts), max_size=2 * len(facts)), label="events")

    async def run() -> None:
        shop = Projections(shared_ledger.database, MODULE, now=service.now, application=application)
        await shop.feed_together(events)
        await shop.relay()
        await shop.feed_together([by_session(one) for one in reconcile(service, application)])
        await shop.relay()
        rows = await shop.rows(SUBSCRIPTIONS, application=application)
        waits = [row for row in rows if row["status"] != "ENDED" and row["customer"] is None]
        if await is_asked_for(shop, application):
            await shop.feed_together(session_readings(service, application, first=1000, count=1))
            await shop.relay()
        else:
            assert not waits, "nobody waits who has not been asked for"
        rows = await shop.rows(SUBSCRIPTIONS, application=application)
        assert {row["customer"] for row in rows if row["status"] != "ENDED"} <= {"cus_1"}
        waiting = [row for row in await shop.rows(FINDINGS, application=application) if row["closed_at"] is None]
        assert not [row for row in waiting if row["kind"] == "unresolved_subscriber" and not is_over(rows, row)]
        await shop.pass_time(minutes=15)
        found = await shop.rows(ENTITLEMENTS, application=application)
        assert any(row["allowed"] for row in found) == service.has_access

    shared_ledger.runner.run(run())


async def is_asked_for(shop: Projections, application: str) -> bool:
    rows = await shop.rows(READS, application=application, kind="session")
    return [row["object_id"] for row in rows] == [SESSION]


def is_over(rows: list[dict[str, Any]], finding: dict[str, Any]) -> bool:
    return finding["subject"] in {row["subscription_id"] for row in rows if row["status"] == "ENDED"}


TOLD_AGAIN = ("charged_after_end", "hinted_at", "lease_until", "awaits", "awaits_at", "awaits_since")


def _without_flags(tables: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """A forced charge on an ended subscription may be flagged (a suspicion), and times of hints (and what they let
    a read show) may be told again."""
    return [[{k: v for k, v in row.items() if k not in TOLD_AGAIN} for row in rows] for rows in tables]
