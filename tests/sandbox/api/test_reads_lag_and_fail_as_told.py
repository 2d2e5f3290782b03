"""Reads that lag, events that vanish, and an API that misbehaves."""

from __future__ import annotations

import aiohttp
import pytest

from consumer.sandbox import Sandbox
from tests.sandbox.support import Api, Receiver, again, body, create, subscribe


async def test_reads_lag_behind_events(api: Api, sandbox: Sandbox) -> None:
    # case: X64
    session = create(sandbox.engine, order_id="lag")
    await sandbox.advance(60)
    sandbox.assumptions.set({"read_lag_s": 10})
    sandbox.engine.payments.pay(session)
    order = session.order_ref
    assert (await api.get(f"/v1/orders/{order}")).json["status"] == "PENDING"
    assert (await api.get("/v1/orders/lookup", order_id="lag")).json["status"] == "PENDING"
    assert (await api.items("/v1/orders"))[0]["status"] == "PENDING"
    assert (await api.get(f"/v1/checkout-sessions/{session.id}")).json["order"]["status"] == "PENDING"
    assert await api.items("/v1/events") == []
    await sandbox.advance(10)
    assert (await api.get(f"/v1/orders/{order}")).json["status"] == "PAID"
    assert len(await api.items("/v1/events")) == 2


async def test_what_is_new_is_not_readable_yet(api: Api, sandbox: Sandbox) -> None:
    # case: X64
    sandbox.assumptions.set({"read_lag_s": 5})
    one = subscribe(sandbox.engine)
    assert (await api.get(f"/v1/subscriptions/{one.id}")).status == 404
    assert await api.items("/v1/subscriptions") == []
    await sandbox.advance(5)
    assert (await api.get(f"/v1/subscriptions/{one.id}")).json["status"] == "ACTIVE"
    sandbox.engine.subscriptions.cancel(again(sandbox.engine, one), "now")
    assert (await api.get(f"/v1/subscriptions/{one.id}")).json["status"] == "ACTIVE"


async def test_old_events_disappear_for_good(api: Api, sandbox: Sandbox) -> None:
    # case: X65
    sandbox.assumptions.set({"retention_s": 3600})
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    old = (await api.items("/v1/events"))[0]["id"]
    await sandbox.advance(3600)
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    assert len(await api.items("/v1/events")) == 2
    await sandbox.advance(1)
    assert [event["id"] == old for event in await api.items("/v1/events")] == [False]
    assert (await api.get(f"/v1/events/{old}")).status == 404
    assert (await api.get("/v1/events", cursor=old)).code == "validation_failed"
    sandbox.assumptions.set({"retention_s": 0})
    assert len(await api.items("/v1/events")) == 1


@pytest.mark.parametrize("shape", ["json", "plain", "html"])
async def test_a_404_has_three_shapes(api: Api, sandbox: Sandbox, shape: str) -> None:
    # case: X66
    sandbox.assumptions.set({"not_found_answer": shape})
    reply = await api.get("/v1/orders/none")
    assert reply.status == 404
    if shape == "html":
        assert reply.headers["Content-Type"].startswith("text/html")
    else:
        assert reply.json.get("code") == ("not_found" if shape == "json" else None)


@pytest.mark.parametrize(
    ("fault", "status"),
    [("rate_limited", 429), ("unauthorized", 401), ("server_error", 503), ("html", 502)],
)
async def test_api_faults_strike_as_often_as_told(api: Api, fault: str, status: int) -> None:
    # case: X66
    await api.control("/faults", {f"{fault}_next": 2, "retry_after_s": 7})
    replies = [await api.get("/v1/application") for _ in range(3)]
    assert [reply.status for reply in replies] == [status, status, 200]
    if status == 429:
        assert replies[0].headers["Retry-After"] == "7"
    if fault == "html":
        assert replies[0].text.startswith("<!doctype html>")


async def test_a_fault_may_be_a_share(api: Api) -> None:
    # case: X66
    await api.control("/faults", {"server_error": 0.5})
    statuses = [(await api.get("/v1/application")).status for _ in range(60)]
    assert 10 < statuses.count(503) < 50
    await api.control("/faults", {"clear": True})
    assert (await api.get("/v1/application")).status == 200


async def test_a_lost_answer_was_carried_out(api: Api) -> None:
    # case: X66
    await api.control("/faults", {"lost_response_next": 1})
    with pytest.raises(aiohttp.ClientError):
        await api.post("/v1/checkout-sessions", body(order_id="lost"))
    assert (await api.get("/v1/orders/lookup", order_id="lost")).json["status"] == "PENDING"
    again_ = await api.post("/v1/checkout-sessions", body(order_id="lost"))
    assert (again_.status, again_.json["url"]) == (200, None)


async def test_slow_answers_arrive(api: Api) -> None:
    # case: X66
    await api.control("/faults", {"api_slow_s": 0.05})
    assert (await api.get("/v1/application")).status == 200


@pytest.mark.parametrize(
    "wrong", [{"nope": 1}, {"drop": 2}, {"drop": "x"}, {"reorder": 1}, {"parallel": 0}, {"delay_s": None}]
)
async def test_a_senseless_fault_is_refused(api: Api, wrong: dict[str, object]) -> None:
    # case: X66
    assert (await api.post("/_sandbox/faults", wrong)).code == "validation_failed"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v2/orders", 404),
        ("DELETE", "/v1/orders", 405),
        ("GET", "/v1/checkout-sessions", 405),
        ("POST", "/v1/orders/lookup", 405),
    ],
)
async def test_unknown_addresses_answer_in_the_error_shape(api: Api, method: str, path: str, status: int) -> None:
    # case: X66
    reply = await api.call(method, path)
    assert (reply.status, reply.json["statusCode"]) == (status, status)
    assert (status == 405) is ("Allow" in reply.headers)


async def test_nothing_of_the_inside_is_shown(api: Api, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: X66
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail of the inside")

    monkeypatch.setattr(sandbox.engine.sessions, "create", broken)
    reply = await api.post("/v1/checkout-sessions", body())
    assert (reply.status, reply.code) == (500, "internal_error")
    assert "secret detail" not in reply.text
    assert "Traceback" not in reply.text


async def test_a_pending_delivery_outlives_the_list(sandbox: Sandbox, receiver: Receiver) -> None:
    # case: X65
    sandbox.set_webhook_url(receiver.url)
    sandbox.assumptions.set({"retention_s": 60})
    sandbox.engine.faults.set({"delay_s": 3600})
    sandbox.engine.sessions.cancel(create(sandbox.engine))
    await sandbox.advance(3600)
    assert receiver.types() == ["checkout.session.canceled"]
