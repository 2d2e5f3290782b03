"""The control addresses: loopback only, and what they do."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.sandbox import Sandbox, SandboxConfig, SandboxMisconfigured
from consumer.sandbox.control.routes import check_local
from consumer.sandbox.engine.events import TYPES
from consumer.sandbox.errors import Refusal
from consumer.sandbox.server import is_loopback
from tests.sandbox.support import Api


class Caller:
    """As much of a request as the check looks at."""

    scheme = "http"

    def __init__(self, remote: str, host: str, origin: str | None) -> None:
        self.remote, self.host = remote, host
        self.headers = {} if origin is None else {"Origin": origin}


@pytest.mark.parametrize(
    ("remote", "host", "origin", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1:4010", None, True),
        ("127.0.0.1", "localhost:4010", "http://localhost:4010", True),
        ("::1", "[::1]:4010", None, True),
        ("::ffff:127.0.0.1", "127.0.0.1:4010", None, True),
        ("10.0.0.7", "127.0.0.1:4010", None, False),
        ("127.0.0.1", "evil.example", None, False),
        ("127.0.0.1", "127.0.0.1:4010", "https://evil.example", False),
        ("127.0.0.1", "127.0.0.1:4010", "null", False),
    ],
)
def test_only_this_machine_and_no_foreign_page_may_control(
    remote: str, host: str, origin: str | None, allowed: bool
) -> None:
    sandbox = Sandbox(SandboxConfig(driven=True))
    caller: Any = Caller(remote, host, origin)
    if allowed:
        check_local(sandbox, caller)
    else:
        with pytest.raises(Refusal, match="loopback_only"):
            check_local(sandbox, caller)


def test_hosts() -> None:
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    with pytest.raises(SandboxMisconfigured):
        is_loopback("example.com")


@pytest.mark.parametrize("event_type", TYPES)
async def test_trigger_makes_any_event_with_its_state(api: Api, event_type: str) -> None:
    made = await api.control("/trigger", {"type": event_type, "set": {"order_id": "t-1", "metadata.plan": "gold"}})
    assert event_type in [event["type"] for event in made["events"]]
    event = next(event for event in made["events"] if event["type"] == event_type)
    shown = (await api.get(f"/v1/events/{event['id']}")).json["data"]["object"]
    assert shown["metadata"] == {"plan": "gold"}
    if "subscription_id" in made:
        assert (await api.get(f"/v1/subscriptions/{made['subscription_id']}")).json["status"] == made["status"]
    else:
        order = (await api.get("/v1/orders/lookup", order_id="t-1")).json
        assert (order["status"] == "PAID") is (event_type in ("order.paid", "checkout.session.completed"))


async def test_trigger_sends_unknown_types_made_up(api: Api) -> None:
    made = await api.control("/trigger", {"type": "invoice.sent", "set": {"id": "in_1", "total": 3}})
    event = (await api.get(f"/v1/events/{made['events'][0]['id']}")).json
    assert (event["type"], event["data"]["object"]) == ("invoice.sent", {"id": "in_1", "total": 3})
    assert (await api.control("/trigger", {"type": "webhook.test"}))["events"][0]["type"] == "webhook.test"


@pytest.mark.parametrize("wrong", [{}, {"type": 3}, {"type": "order.paid", "set": 1},
                                   {"type": "order.paid", "set": {"colour": "red"}},
                                   {"type": "order.paid", "set": {"amount": "x"}},
                                   {"type": "order.paid", "set": {"amount": 3}}])  # fmt: skip
async def test_a_senseless_trigger_is_refused(api: Api, wrong: dict[str, Any]) -> None:
    assert (await api.post("/_sandbox/trigger", wrong)).status == 400


async def test_the_control_addresses_of_the_contract(api: Api) -> None:
    session = await api.create()
    confirmed = await api.control(f"/sessions/{session['id']}/pay", {"until": "confirmed"})
    assert (confirmed["status"], confirmed["payment"]["status"]) == ("OPEN", "CONFIRMED")
    assert (await api.control(f"/sessions/{session['id']}/pay", {"until": "finalized"}))["status"] == "COMPLETED"
    assert (await api.control(f"/sessions/{(await api.create())['id']}/cancel"))["status"] == "CANCELED"
    recurring = await api.create(mode="subscription", amount=None, description=None, price_id="svc_price_monthly")
    one = (await api.control(f"/sessions/{recurring['id']}/pay"))["subscription_id"]
    for action, status in (("fail", "PAST_DUE"), ("renew", "ACTIVE"), ("payer-cancel", "ACTIVE"),
                           ("payer-withdraw", "ACTIVE")):  # fmt: skip
        assert (await api.control(f"/subscriptions/{one}/{action}"))["status"] == status
    assert (await api.get("/_sandbox/clock")).json["now"] == "2026-01-01T00:00:00.000Z"
    assert (await api.control("/clock/advance", {"seconds": 90}))["now"] == "2026-01-01T00:01:30.000Z"
    assert (await api.control("/faults", {"drop": 0.2, "duplicate": 0.1, "reorder": True}))["drop"] == 0.2
    assert (await api.get("/_sandbox/deliveries")).json == {"count": 0, "items": []}
    assert len((await api.get("/_sandbox/scenarios")).json["scenarios"]) == 22
    assert (await api.control("/reset"))["status"] == "reset"
    assert await api.items("/v1/orders") == []
    assert (await api.get("/_sandbox/faults")).json["drop"] == 0


async def test_what_the_payer_cannot_do_is_refused(api: Api) -> None:
    session = await api.create()
    await api.control(f"/sessions/{session['id']}/pay")
    assert (await api.post(f"/_sandbox/sessions/{session['id']}/pay")).status == 409
    assert (await api.post(f"/_sandbox/sessions/{session['id']}/cancel")).code == "session_not_cancelable"
    assert (await api.post("/_sandbox/sessions/none/pay")).status == 404
    assert (await api.post("/_sandbox/subscriptions/none/renew")).status == 404
    assert (await api.post(f"/_sandbox/sessions/{session['id']}/pay", {"until": "never"})).status in (400, 409)
    assert (await api.post("/_sandbox/scenarios/none")).status == 404
    assert (await api.post("/_sandbox/scenarios/happy", {"speed": 3})).json["field"] == "speed"


async def test_the_dashboard(api: Api) -> None:
    # case: X47, X50, X53
    made = await api.control("/merchants", {"name": "M", "fee_bps": 100})
    assert made["application"]["app_secret"].startswith("svc_sk_live_")
    assert made["application"]["webhook_secret"].startswith("whsec_")
    app_id = made["application"]["app_id"]
    assert (await api.control(f"/applications/{app_id}/roll-secret"))["valid_secrets"] == 2
    assert (await api.control(f"/applications/{app_id}/webhook", {"url": "http://127.0.0.1:9/"}))["webhook_url"]
    assert (await api.post(f"/_sandbox/applications/{app_id}/webhook", {"url": "ftp://x"})).status == 400
    assert (await api.control(f"/applications/{app_id}/revoke-secrets"))["valid_secrets"] == 0
    assert (await api.control(f"/applications/{app_id}/disable"))["disabled"] is True
    product = await api.control("/products", {"name": "P"})
    price = await api.control("/prices", {"product_id": product["id"], "amount": "1", "interval_days": 365})
    assert (await api.control(f"/prices/{price['id']}/archive"))["archived"] is True
    assert (await api.control(f"/products/{product['id']}/archive"))["archived"] is True
    assert (await api.post("/_sandbox/prices", {"amount": "1", "interval_days": 31})).status == 400
