"""Explain: why, and what comes next."""

from __future__ import annotations

from datetime import timedelta

import pytest

from consumer.console.answers import answer
from consumer.console.explain import explain_customer, explain_order, explain_subscription
from consumer.errors import NotFound
from consumer.ledger import Database
from handlers.access.policy import Policy
from tests.support.projections import START, Projections, observed, own, said


async def test_an_order_says_why_it_waits_and_for_what(sqlite_ledger: Database, projections: Projections) -> None:
    # case: A50, F21
    said_ = {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}
    await projections.feed(own("checkout.registered", "order:A1", said_))
    await projections.feed(said("order.paid", "evt_1", order_id="A1", amount="9", at=START + timedelta(minutes=1)))
    async with sqlite_ledger.reading() as session:
        found = await explain_order(session, "default", "A1")
        with pytest.raises(NotFound):
            await explain_order(session, "default", "A2")
    assert found["state"]["hold"] == "amount_mismatch"
    assert [(entry["code"], entry["event_id"]) for entry in found["timeline"] if "trust" in entry] == [
        ("checkout.registered", "drv_checkout.registered_order:A1_1767225600.0"),
        ("order.paid", "evt_1"),
    ]
    assert [entry["code"] for entry in found["next"]] == ["read", "finding.amount_mismatch", "held.amount_mismatch"]
    answer(found)


async def test_a_subscription_says_its_policy_and_its_next_read(
    sqlite_ledger: Database, projections: Projections
) -> None:
    # case: A50
    await projections.feed(said("subscription.past_due", "evt_1", id="S1", customer_reference="c"))
    await projections.feed(
        observed("subscription:S1", 1, {"status": "PAST_DUE", "price_id": "p", "customer_reference": "c"})
    )
    policy = Policy(past_due_by_price={"p": "grace:3d"})
    async with sqlite_ledger.reading() as session:
        found = await explain_subscription(session, "default", "S1", policy, START)
    assert found["policy"]["past_due"] == "grace:3d"
    assert found["state"]["until"] == START + timedelta(days=3)
    assert [entry["code"] for entry in found["next"]] == ["read", "access.subscription_due"]
    answer(found)


async def test_a_customer_says_every_source_and_every_deadline(
    sqlite_ledger: Database, projections: Projections
) -> None:
    # case: A50, A42
    await projections.feed(observed("subscription:S1", 1, {"status": "PAST_DUE", "customer_reference": "c"}))
    await projections.feed(own("access.held", "customer:c", {"by": "op", "reason": "dispute"}, id_="drv_hold"))
    async with sqlite_ledger.reading() as session:
        found = await explain_customer(session, "default", "c", Policy(), START)
    assert found["state"]["allowed"] is False
    assert found["state"]["entitlements"][0]["reasons"] == ["held:drv_hold"]
    assert [(one["kind"], one["reason"], one["by"]) for one in found["sources"]] == [("hold", "dispute", "op")]
    assert [one["id"] for one in found["subscriptions"]] == ["S1"]
    assert "access.customer_due" in [entry["code"] for entry in found["next"]]
    codes = [entry["code"] for entry in found["timeline"]]
    assert "access.held" in codes
    [revoked] = [entry for entry in found["timeline"] if entry["code"] == "access.revoked"]
    assert revoked["by"] == "access:source_added"
    assert revoked["after"]["reasons"] == ["held:drv_hold"]
    answer(found)
