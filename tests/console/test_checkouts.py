"""Registering a checkout through the query API: compared with the payment, linked to the customer, told once."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Table

from consumer.ledger.tables import AuditRow
from handlers.access.tables import LINKS
from handlers.fulfilment.tables import CHECKOUTS, ORDERS
from tests.console.conftest import Client
from tests.support.handling.projections import OUTBOX, START, Projections, observed, said

AUDIT: Table = AuditRow.__table__
BODY: dict[str, Any] = {"order_id": "A/1", "customer": "cus_1", "expected_amount": "10.50"}


async def put(api: Client, path: str = "/api/checkouts/s1", body: Any = BODY) -> tuple[int, Any]:
    given = {"data": body} if isinstance(body, bytes) else {"json": body}
    async with api.put(path, **given) as response:
        return response.status, await response.json()


async def test_a_registration_counts_at_once_and_is_told_to_the_handlers(api: Client, projections: Projections) -> None:
    # case: F20, F21, A37
    status, body = await put(api)
    said_back = {"application": "default", "session_id": "s1", "mode": "payment", "price_id": None, **BODY}
    assert (status, body) == (200, said_back)
    await projections.feed(said("order.paid", "evt_1", order_id="A/1", amount="10.49"))
    assert projections.of_type("fulfilment.requested") == [], "before any event was relayed the amount is compared"
    [event] = await projections.relay()
    assert (event.type, event.key) == ("checkout.registered", "order:A/1")
    assert (await projections.row(ORDERS))["hold"] == "amount_mismatch"
    assert (await projections.row(LINKS))["customer"] == "cus_1"


async def test_a_parked_order_goes_on_when_it_is_registered(api: Client, projections: Projections) -> None:
    # case: F20
    projections.handlers = [one for one in projections.handlers if one.name.startswith("fulfilment")]
    projections.options = {"matching": "on"}
    await projections.feed(said("order.paid", "evt_1", order_id="A/1"))
    assert projections.emitted == []
    await put(api)
    await projections.relay()
    [request] = projections.of_type("fulfilment.requested")
    assert request.data["customer"] == "cus_1"


async def test_a_waiting_subscriber_is_resolved_by_it(api: Client, projections: Projections) -> None:
    # case: A36, A37
    record = {"status": "ACTIVE", "checkout_session_id": "s1"}
    await projections.feed(observed("subscription:S1", 1, record))
    await put(api, body={**BODY, "mode": "subscription", "expected_amount": None})
    await projections.relay()
    [granted] = projections.of_type("access.granted")
    assert granted.key == "customer:cus_1"
    assert await projections.rows(ORDERS) == [], "a subscription checkout makes no order"


async def test_the_same_again_is_no_news(api: Client, projections: Projections) -> None:
    for amount in ("10.50", "10.50", "10.500"):
        assert (await put(api, body={**BODY, "expected_amount": amount}))[0] == 200
    assert len(await projections.rows(OUTBOX)) == 1


async def test_a_registration_is_audited(api: Client, projections: Projections) -> None:
    # case: G12
    await put(api)
    row = await projections.row(AUDIT)
    assert (row["actor"], row["action"], row["subject"]) == ("query_api", "checkout.registered", "order:A/1")
    assert row["at"] == START


async def test_registering_does_not_touch_what_the_events_said(api: Client, projections: Projections) -> None:
    await projections.feed(said("checkout.session.completed", "evt_1", id="s1", order_id="A/1"))
    await projections.feed(observed("order:A/1", 1, {"status": "PAID", "id": "so1"}))
    await put(api)
    await projections.relay()
    assert (await projections.row(CHECKOUTS))["status"] == "COMPLETED"
    order = await projections.row(ORDERS)
    assert (order["observed_status"], order["service_order_id"]) == ("PAID", "so1")
    assert len(projections.of_type("fulfilment.requested")) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"order_id": ""},
        {"order_id": "x" * 129},
        {"order_id": 7},
        {"order_id": "a\x00b"},
        {"order_id": "A1", "customer": ""},
        {"order_id": "A1", "expected_amount": 10},
        {"order_id": "A1", "expected_amount": "ten"},
        {"order_id": "A1", "expected_amount": "-1"},
        {"order_id": "A1", "expected_amount": "0"},
        {"order_id": "A1", "expected_amount": "NaN"},
        {"order_id": "A1", "expected_amount": "1.0000001"},
        {"order_id": "A1", "expected_amount": "1000000.000001"},
        {"order_id": "A1", "mode": "gift"},
        {"order_id": "A1", "price_id": ""},
        {"order_id": "A1", "surprise": 1},
        [],
        b"",
        b"{",
        b"\xff\xfe",
    ],
)
async def test_a_body_that_does_not_fit_is_refused(api: Client, projections: Projections, body: Any) -> None:
    status, answer = await put(api, body=body)
    assert (status, answer["error"]["code"]) == (400, "bad_request")
    assert await projections.rows(CHECKOUTS) == []


async def test_a_body_that_is_too_large_is_refused(api: Client) -> None:
    status, answer = await put(api, body=b" " * 20_000)
    assert status == 413
    assert "error" in answer
