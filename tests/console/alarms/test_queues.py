"""What waits for an operator is found without knowing whose it is."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from consumer.console.alarms.queues import findings, queues
from consumer.ledger import Database
from tests.console.conftest import Client
from tests.support.handling.projections import START, Projections, observed, own, said


async def asked(api: Client, query: str = "") -> dict[str, Any]:
    async with api.get(f"/api/findings{query}") as response:
        assert response.status == web.HTTPOk.status_code
        found: dict[str, Any] = await response.json()
        return found


async def test_nothing_waits(api: Client) -> None:
    assert await asked(api) == {"application": "default", "queues": [], "findings": []}


async def test_every_queue_is_counted_and_listed(api: Client, projections: Projections) -> None:
    # case: A36, F28, F29, F21
    await projections.feed(
        observed("subscription:S1", 1, {"status": "ACTIVE"}),
        observed("subscription:S2", 2, {"status": "ACTIVE"}),
        observed("payment:p1", 3, {"id": "p1", "status": "SUCCEEDED"}),
        own("checkout.registered", "order:A1", {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}),
        said("order.paid", "evt_1", order_id="A1", amount="9"),
    )
    found = await asked(api)
    assert [(one["plugin"], one["kind"], one["count"]) for one in found["queues"]] == [
        ("access", "unresolved_subscriber", 2),
        ("fulfilment", "amount_mismatch", 1),
        ("fulfilment", "orphan_payment", 1),
    ]
    assert found["queues"][0]["oldest_at"] == START.isoformat()
    assert [one["subject"] for one in found["findings"]] == ["A1", "p1", "S1", "S2"]
    assert found["findings"][0]["detail"] == {"expected_amount": "10", "amount": "9"}
    only = await asked(api, "?kind=orphan_payment")
    assert [one["subject"] for one in only["findings"]] == ["p1"]


async def test_a_mistyped_kind_is_told_and_what_is_near_it(api: Client) -> None:
    async with api.get("/api/findings?kind=orphan_paymen") as response:
        assert response.status == 400
        assert "near: orphan_payment" in (await response.json())["error"]["message"]
    assert (await asked(api, "?kind=orphan_payment"))["findings"] == []


async def test_as_many_are_listed_as_are_asked_for(
    sqlite_ledger: Database, projections: Projections, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: F28
    monkeypatch.setattr("consumer.console.alarms.queues.LISTED_MAX", 3)
    paid = {"status": "SUCCEEDED"}
    await projections.feed(*[observed(f"payment:p{one}", one, {"id": f"p{one}"} | paid) for one in range(1, 7)])
    async with sqlite_ledger.reading() as session:
        assert len(await findings(session, "default")) == 3
        assert [one["subject"] for one in await findings(session, "default", limit=5)] == [f"p{n}" for n in range(1, 6)]


async def test_what_is_closed_does_not_wait(api: Client, projections: Projections) -> None:
    # case: F28
    await projections.feed(observed("payment:p1", 1, {"id": "p1", "status": "SUCCEEDED"}))
    word = {"kind": "orphan_payment", "by": "op", "reason": "refunded"}
    await projections.feed(own("fulfilment.finding_closed", "object:p1", word))
    assert await asked(api) == {"application": "default", "queues": [], "findings": []}


async def test_one_application_does_not_see_anothers(
    api: Client, projections: Projections, sqlite_ledger: Database
) -> None:
    # case: G8
    await projections.feed(observed("subscription:S1", 1, {"status": "ACTIVE"}, application="other"))
    assert (await asked(api))["findings"] == []
    assert [one["subject"] for one in (await asked(api, "?application=other"))["findings"]] == ["S1"]
    async with sqlite_ledger.reading() as session:
        assert [(one.application, one.kind) for one in await queues(session)] == [("other", "unresolved_subscriber")]
