"""The query API: what a shop's own pages ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from yarl import URL

from consumer.clock import DrivenClock
from consumer.errors import LedgerUnavailable
from consumer.events import Trust
from consumer.ledger import Database, processes
from consumer.ledger.handling import runs as runs_
from consumer.ledger.handling.dead import DISCARDED, DISCARDED_WAITING
from consumer.ledger.handling.runs import Run
from consumer.ledger.processes import Proof, Pulse
from consumer.ledger.tables import RunStatus
from consumer.plugin import derived_id
from tests.console.conftest import TOKEN, Client, Open
from tests.support.handling.projections import START, Projections, observed, own, said


async def get(api: Client, path: str, **kwargs: Any) -> tuple[int, Any]:
    async with api.get(URL(path, encoded=True), **kwargs) as response:
        assert response.content_type == "application/json"
        return response.status, await response.json()


async def run_ended(database: Database, order_id: str, handler: str, status: str) -> None:
    """As if a merchant's handler of `fulfilment.requested` had got so far."""
    key = f"order:{order_id}"
    run = Run(
        application="default",
        event_id=derived_id("default", "fulfilment.requested", key, "order"),
        handler=handler,
        seq=1,
        key=key,
        status=RunStatus.SKIPPED if status in (DISCARDED, DISCARDED_WAITING) else RunStatus(status),
        blocking=False,
        attempts=1,
        code=status if status in (DISCARDED, DISCARDED_WAITING) else None,
    )
    async with database.transaction() as session:
        await runs_.add(session, [run], START)


class Away(Database):
    """A ledger that does not answer."""

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        raise LedgerUnavailable
        yield  # an async generator needs one


async def test_an_unknown_order_is_404(api: Client) -> None:
    status, body = await get(api, "/api/orders/A1")
    assert status == 404
    assert body["error"]["code"] == "not_found"


async def test_a_processing_page_sees_pending_then_paid(api: Client, projections: Projections) -> None:
    # case: F16
    await projections.feed(own("checkout.registered", "order:A1", {"session_id": "s1", "order_id": "A1"}))
    status, body = await get(api, "/api/orders/A1")
    assert (status, body["status"], body["fulfilment"], body["proof"]) == (200, "PENDING", "none", None)
    await projections.feed(said("order.paid", "evt_1", trust=Trust.READ, id="so1", order_id="A1"))
    _, body = await get(api, "/api/orders/A1")
    assert (body["application"], body["order_id"]) == ("default", "A1")
    assert (body["status"], body["fulfilment"]) == ("PAID", "requested")
    assert body["proof"] == {"type": "order.paid", "event_id": "evt_1", "at": START.isoformat()}
    assert body["sessions"] == [{"session_id": "s1", "status": "OPEN"}]


@pytest.mark.parametrize(
    ("runs", "word"),
    [
        ([], "requested"),
        (["retrying"], "requested"),
        (["parked"], "requested"),
        (["succeeded"], "fulfilled"),
        (["succeeded", "retrying"], "requested"),
        (["succeeded", "dead"], "failed"),
        (["succeeded", "skipped"], "fulfilled"),
        (["skipped"], "requested"),
        (["discarded"], "requested"),
        (["succeeded", "discarded"], "requested"),
        (["succeeded", "discarded_waiting"], "requested"),
        (["dead", "discarded"], "failed"),
    ],
)
async def test_fulfilment_is_what_the_merchants_handlers_did(
    api: Client, projections: Projections, sqlite_ledger: Database, runs: list[str], word: str
) -> None:
    """A mail that went out makes nothing of a parcel that an operator gave up."""
    # case: F33
    await projections.feed(said("order.paid", "evt_1", trust=Trust.READ, order_id="A1"))
    for number, status in enumerate(runs):
        await run_ended(sqlite_ledger, "A1", f"shop:ship{number}", status)
    _, body = await get(api, "/api/orders/A1")
    assert body["fulfilment"] == word
    assert [run["status"] for run in body["runs"]] == ["skipped" if "discarded" in one else one for one in runs]


async def test_a_held_and_an_unfulfillable_order_say_so(api: Client, projections: Projections) -> None:
    # case: F21, F33
    said_ = {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}
    await projections.feed(own("checkout.registered", "order:A1", said_))
    await projections.feed(said("order.paid", "evt_1", trust=Trust.READ, order_id="A1", amount="9"))
    _, body = await get(api, "/api/orders/A1")
    assert (body["status"], body["fulfilment"], body["hold"]) == ("PAID", "none", "amount_mismatch")
    assert [finding["kind"] for finding in body["findings"]] == ["amount_mismatch"]
    await projections.feed(own("fulfilment.released", "order:A1", {"by": "op"}))
    await projections.feed(own("fulfilment.unfulfillable", "order:A1", {"reason": "sold out"}))
    _, body = await get(api, "/api/orders/A1")
    assert (body["status"], body["fulfilment"]) == ("PAID", "failed")


@pytest.mark.parametrize("order_id", ["a/b", "a b&c=d?e#f", "Ä№7", "%2F", "..", "x" * 128, "a+b", "/", "a/access"])
async def test_any_order_id_can_be_asked_for(api: Client, projections: Projections, order_id: str) -> None:
    # case: F26
    await projections.feed(said("order.paid", "evt_1", trust=Trust.READ, order_id=order_id))
    status, body = await get(api, "/api/orders/" + quote(order_id, safe="").replace(".", "%2E"))
    assert (status, body["order_id"]) == (200, order_id)


@pytest.mark.parametrize("raw", ["%FF", "a%00b", "x" * 256])
async def test_an_id_that_cannot_be_is_refused(api: Client, raw: str) -> None:
    status, body = await get(api, f"/api/orders/{raw}")
    assert (status, body["error"]["code"]) == (400, "bad_request")


async def test_applications_are_apart(api: Client, projections: Projections) -> None:
    # case: G8, F25
    await projections.feed(said("order.paid", "evt_1", trust=Trust.READ, order_id="A1", application="other"))
    assert (await get(api, "/api/orders/A1"))[0] == 404
    status, body = await get(api, "/api/orders/A1?application=other")
    assert (status, body["application"]) == (200, "other")
    for path in ("/api/orders/A1", "/api/customers/c/access"):
        status, body = await get(api, f"{path}?application=nobody")
        assert (status, body["error"]["code"]) == (400, "bad_request"), "404 is of what was asked for"


async def test_the_only_application_need_not_be_named(open_api: Open, projections: Projections) -> None:
    # case: G8, F25
    await projections.feed(said("order.paid", "evt_1", trust=Trust.READ, order_id="A1", application="other"))
    assert (await get(await open_api(applications=["other"]), "/api/orders/A1"))[0] == 200


async def test_of_several_applications_without_a_default_one_must_be_named(open_api: Open) -> None:
    """Another application was added, and every unnamed request was 404: to a shop, whose access all was gone."""
    # case: G8, F25
    api = await open_api(applications=["near", "far"])
    for path in ("/api/orders/A1", "/api/customers/alice/access", "/api/findings"):
        status, body = await get(api, path)
        assert (status, body["error"]["code"]) == (400, "bad_request")
        assert "name the application" in body["error"]["message"]
    assert (await get(api, "/api/customers/alice/access?application=near"))[0] == 200


async def test_a_subscription_with_its_end_reason(api: Client, projections: Projections) -> None:
    # case: A28, A19
    shown = {"id": "S1", "status": "ACTIVE", "customer_reference": "c", "price_id": "p", "cancel_at_period_end": True}
    await projections.feed(observed("subscription:S1", 1, {**shown, "cancel_reason": "PAYER_CANCELED"}))
    _, body = await get(api, "/api/subscriptions/S1")
    assert (body["id"], body["status"], body["allowed"], body["will_end"]) == ("S1", "ACTIVE", True, True)
    assert (body["cancel_at_period_end"], body["cancel_reason"]) == (True, "PAYER_CANCELED")
    await projections.feed(said("subscription.ended", "evt_1", id="S1", end_reason="MERCHANT_CANCELED"))
    _, body = await get(api, "/api/subscriptions/S1")
    assert (body["status"], body["end_reason"], body["allowed"]) == ("ENDED", "MERCHANT_CANCELED", False)
    assert (await get(api, "/api/subscriptions/S2"))[0] == 404


async def test_a_subscription_of_who_is_stopped_allows_nothing(
    api: Client, projections: Projections, clock: DrivenClock
) -> None:
    """A shop that asks for the subscription let in whom an operator had stopped."""
    # case: A42
    await projections.feed(observed("subscription:S1", 1, {"status": "ACTIVE", "customer_reference": "c"}))
    over = {"by": "ann", "until": (START + timedelta(days=2)).isoformat()}
    other = {"by": "ann", "entitlement": "another"}
    await projections.feed(own("access.held", "customer:c", other, id_="drv_other"))
    _, body = await get(api, "/api/subscriptions/S1")
    assert (body["allowed"], body["reason"]) == (True, "active:S1"), "what it gives is not stopped"
    await projections.feed(own("access.held", "customer:c", over, id_="drv_hold"))
    _, body = await get(api, "/api/subscriptions/S1")
    assert (body["status"], body["allowed"], body["reason"]) == ("ACTIVE", False, "held:drv_hold")
    assert body["entitlements"] == ["default"], "what it would give"
    _, access = await get(api, "/api/customers/c/access")
    assert access["allowed"] is False
    clock.advance(2 * 86400)
    _, body = await get(api, "/api/subscriptions/S1")
    assert (body["allowed"], body["reason"]) == (True, "active:S1"), "its time is over"


async def test_a_hold_of_one_thing_leaves_the_others(open_api: Open, projections: Projections) -> None:
    # case: A42, A27
    api = await open_api(options={"access": {"entitlements": {"p": ["films", "music"]}}})
    live = {"status": "ACTIVE", "customer_reference": "c", "price_id": "p"}
    await projections.feed(observed("subscription:S1", 1, live))
    for name, is_allowed in (("films", True), ("music", False)):
        await projections.feed(own("access.held", "customer:c", {"by": "ann", "entitlement": name}, id_=f"drv_{name}"))
        _, body = await get(api, "/api/subscriptions/S1")
        assert (body["allowed"], body["held"]) == (is_allowed, sorted({"films", name}))
    assert body["reason"] == "held:drv_films"


async def test_a_subscription_nobody_read_yet_allows_nothing(api: Client, projections: Projections) -> None:
    # case: A3
    await projections.feed(said("subscription.created", "evt_1", id="S1", customer_reference="c"))
    _, body = await get(api, "/api/subscriptions/S1")
    assert (body["status"], body["allowed"], body["reason"]) == (None, False, "unread")


async def test_an_unmapped_price_shows_in_the_subscription(open_api: Open, projections: Projections) -> None:
    # case: A32
    options = {"access": {"entitlements": {"other": ["pro"]}}}
    projections.options = options["access"]
    projections.handlers = [one for one in projections.handlers if one.name.startswith("access")]
    await projections.feed(
        observed("subscription:S1", 1, {"status": "ACTIVE", "price_id": "p", "customer_reference": "c"})
    )
    api = await open_api(options=options)
    _, body = await get(api, "/api/subscriptions/S1")
    assert (body["status"], body["allowed"], body["entitlements"]) == ("ACTIVE", False, [])
    assert [finding["kind"] for finding in body["findings"]] == ["unmapped_price"]


async def test_access_with_its_reasons(api: Client, projections: Projections, clock: DrivenClock) -> None:
    # case: A50, A41
    assert await get(api, "/api/customers/c%2F1/access") == (
        200,
        {"application": "default", "customer": "c/1", "allowed": False, "entitlements": []},
    )
    await projections.feed(observed("subscription:S1", 1, {"status": "PAST_DUE", "customer_reference": "c/1"}))
    _, body = await get(api, "/api/customers/c%2F1/access")
    assert body["allowed"] is True
    [entitlement] = body["entitlements"]
    assert entitlement["entitlement"] == "default"
    assert entitlement["until"] == (START + timedelta(days=14)).isoformat()
    assert entitlement["reasons"] == ["grace:S1"]
    clock.advance(14 * 86400)
    _, body = await get(api, "/api/customers/c%2F1/access")
    assert body["allowed"] is False, "the time is over, even if the timer has not gone off yet"


async def test_who_had_many_things_is_not_refused_the_last_one(api: Client, projections: Projections) -> None:
    # case: A50
    for number in range(60):
        gift = {"by": "ann", "entitlement": f"course-{number}"}
        await projections.feed(own("access.complimentary_granted", "customer:ada", gift, id_=f"drv_{number}"))
    _, body = await get(api, "/api/customers/ada/access")
    assert sum(one["allowed"] for one in body["entitlements"]) == 60


async def test_the_token_is_needed_when_set(open_api: Open) -> None:
    api = await open_api(token=TOKEN)
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
    ):
        async with api.get("/api/customers/c/access", headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"].startswith("Bearer")
            body = await response.text()
            assert TOKEN not in body
    async with api.put("/api/checkouts/s1", json={"order_id": "A1"}) as response:
        assert response.status == 401
    status, _ = await get(api, "/api/customers/c/access", headers={"Authorization": f"Bearer {TOKEN}"})
    assert status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/nothing", 404),  # by its code it is no unknown order
        ("POST", "/api/orders/A1", 405),
        ("GET", "/api/checkouts/s1", 405),
        ("GET", "/api", 404),
    ],
)
async def test_errors_are_json_too(api: Client, method: str, path: str, status: int) -> None:
    async with api.request(method, path) as response:
        assert response.status == status
        assert "error" in await response.json()


async def test_a_ledger_that_is_away_is_503(open_api: Open) -> None:
    away = Away("postgresql+asyncpg://127.0.0.1:1/none")
    try:
        api = await open_api(database=away)
        async with api.get("/api/orders/A1") as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) > 0
            assert (await response.json())["error"]["code"] == "ledger_unavailable"
    finally:
        await away.stop()


async def test_answers_are_not_cached(api: Client) -> None:
    async with api.get("/api/customers/c/access") as response:
        assert response.headers["Cache-Control"] == "no-store"


async def test_every_process_is_listed_with_what_its_checks_say(api: Client, sqlite_ledger: Database) -> None:
    why = Proof(code="ledger_locked", reason="Somebody else holds the database's lock.")
    pulse = Pulse(
        process="one", role="work", host="shop-1", pid=7, version="0.1.0", started_at=START, ready=False, since=START,
        checks={"ledger_write": why},
    )  # fmt: skip
    async with sqlite_ledger.transaction() as session:
        await processes.beat(session, [pulse], START)
    status, body = await get(api, "/api/processes")
    [one] = body["processes"]
    assert (status, one["role"], one["host"], one["pid"], one["ready"]) == (200, "work", "shop-1", 7, False)
    assert one["checks"]["ledger_write"]["code"] == "ledger_locked"


async def test_a_compressed_body_is_refused_unopened(api: Client) -> None:
    coded = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with api.put("/api/checkouts/s1", data=b"not packed at all", headers=coded) as answer:
        assert answer.status == 415
