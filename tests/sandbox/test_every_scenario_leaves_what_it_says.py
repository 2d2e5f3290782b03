"""The 22 named scenarios: what each one leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.sandbox import Sandbox
from consumer.sandbox.scenarios import SCENARIOS
from tests.sandbox.support import Api, basic

PAID = ["order.paid", "checkout.session.completed"]
BEGUN = ["subscription.created", "checkout.session.completed"]
FAILED = "subscription.payment_failed"

# name: the statuses at the end (orders and subscriptions), and the events in order.
OUTCOMES: dict[str, tuple[list[str], list[str]]] = {
    "happy": (["PAID"], PAID),
    "late-payment-after-expiry": (["PAID"], ["checkout.session.expired", "order.expired", "order.paid"]),
    "late-payment-after-cancel": (["PAID"], ["checkout.session.canceled", "order.paid"]),
    "replaced-session": (["PAID"], ["checkout.session.expired", *PAID]),
    "double-pay": (["PAID"], ["checkout.session.canceled", *PAID]),
    "confirmed-never-finalized": (["EXPIRED"], ["checkout.session.expired", "order.expired"]),
    "past-due-recovered": (["ACTIVE"], [*BEGUN, FAILED, "subscription.past_due", "subscription.renewed"]),
    "past-due-lost": (
        ["ENDED"],
        [*BEGUN, FAILED, "subscription.past_due", FAILED, FAILED, FAILED, "subscription.ended"],
    ),
    "payer-cancel": (["ENDED"], [*BEGUN, "subscription.cancel_scheduled", "subscription.ended"]),
    "payer-withdraws": (
        ["ACTIVE"],
        [*BEGUN, "subscription.cancel_scheduled", "subscription.cancel_withdrawn", "subscription.renewed"],
    ),
    "merchant-cancel-stands": (
        ["ENDED"],
        [*BEGUN, "subscription.cancel_scheduled", "subscription.cancel_withdrawn", "subscription.ended"],
    ),
    "cancel-then-renewal-lands": (["ENDED"], [*BEGUN, "subscription.ended", "subscription.renewed"]),
    "resubscribe": (["ACTIVE", "ENDED"], [*BEGUN, "subscription.ended", *BEGUN]),
    "missed-period": (["ACTIVE"], [*BEGUN, "subscription.renewed"]),
    "secret-roll": (["PAID", "PAID"], PAID * 2),
    "merchant-deactivated": (["PAID"], PAID),
    "app-disabled": ([], []),
    "outage-6h": (["ACTIVE", "ENDED", "PAID", "PAID", "PAID"], [*BEGUN * 2, *PAID * 3, "subscription.ended"]),
    "outage-beyond-retention": (
        ["ACTIVE", "ENDED", "PAID", "PAID", "PAID"],
        [*BEGUN * 2, *PAID * 3, "subscription.ended"],
    ),
    "rate-limited": (["PAID", "PAID", "PAID"], PAID * 3),
    "test-event": ([], ["webhook.test", "order.paid", "order.paid"]),
    "unknown-type": (["PAID"], ["invoice.finalized", *PAID]),
}


def test_there_are_twenty_two() -> None:
    assert set(SCENARIOS) == set(OUTCOMES)
    assert len(SCENARIOS) == 22


@pytest.mark.parametrize("name", list(OUTCOMES))
async def test_scenario(api: Api, name: str) -> None:
    result: dict[str, Any] = await api.control(f"/scenarios/{name}")
    statuses, events = OUTCOMES[name]
    expected = result["expected"]
    assert sorted([*expected["orders"].values(), *expected["subscriptions"].values()]) == statuses
    assert [event["type"] for event in result["events"]] == events
    if "new_secret" in result:
        assert (await api.get("/v1/application")).status == 401, "the old secret has stopped working"
        api.authorization = basic(secret=result["new_secret"])
    for order_id, status in expected["orders"].items():
        assert (await api.get("/v1/orders/lookup", order_id=order_id)).json["status"] == status
        assert (order_id in expected["fulfilled"]) is (status == "PAID")
    for one, status in expected["subscriptions"].items():
        assert (await api.get(f"/v1/subscriptions/{one}")).json["status"] == status


async def test_each_can_be_played_again_and_leaves_faults_and_switches_as_they_were(sandbox: Sandbox) -> None:
    faults, switches = sandbox.engine.faults.values(), sandbox.assumptions.values()
    for name in SCENARIOS:
        if name != "secret-roll":
            first, second = await sandbox.play(name), await sandbox.play(name)
            assert not set(first["sessions"]) & set(second["sessions"])
    assert (sandbox.engine.faults.values(), sandbox.assumptions.values()) == (faults, switches)


async def test_double_pay_leaves_two_payments_for_one_order(api: Api) -> None:
    # case: X14
    result = await api.control("/scenarios/double-pay")
    payments = await api.items("/v1/payments")
    assert [one["status"] for one in payments] == ["SUCCEEDED", "SUCCEEDED"]
    assert {one["order_id"] for one in payments} == set(result["expected"]["orders"])


async def test_missed_periods_are_not_charged(api: Api) -> None:
    # case: X48
    await api.control("/scenarios/missed-period")
    assert len(await api.items("/v1/payments")) == 2


async def test_a_disabled_application_is_refused(api: Api) -> None:
    # case: X52
    result = await api.control("/scenarios/app-disabled")
    assert (result["after"], result["canceled_deliveries"]) == ("invalid_api_credentials", 2)


async def test_beyond_retention_only_the_state_is_left(api: Api) -> None:
    # case: X65
    result = await api.control("/scenarios/outage-beyond-retention", {"count": 5})
    assert len(result["expected"]["fulfilled"]) == 5
    assert not any(event["listed"] for event in result["events"])
    assert await api.items("/v1/events") == []
