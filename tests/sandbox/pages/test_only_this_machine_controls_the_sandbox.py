"""The control addresses: loopback only, and what they do."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.sandbox import SandboxMisconfigured
from consumer.sandbox.control.routes import check_local
from consumer.sandbox.engine.events import TYPES
from consumer.sandbox.errors import Refusal
from consumer.sandbox.server import require_address
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
    caller: Any = Caller(remote, host, origin)
    if allowed:
        check_local(caller)
    else:
        with pytest.raises(Refusal, match="loopback_only"):
            check_local(caller)


def test_hosts() -> None:
    for host in ("localhost", "::1", "0.0.0.0"):
        require_address(host)
    with pytest.raises(SandboxMisconfigured):
        require_address("example.com")


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


async def test_trigger_sends_unknown_types_made_up_when_told_to(api: Api) -> None:
    # case: I7
    made = await api.control("/trigger", {"type": "invoice.sent", "set": {"id": "in_1", "total": 3}, "any_type": True})
    event = (await api.get(f"/v1/events/{made['events'][0]['id']}")).json
    assert (event["type"], event["data"]["object"]) == ("invoice.sent", {"id": "in_1", "total": 3})
    assert (await api.control("/trigger", {"type": "webhook.test"}))["events"][0]["type"] == "webhook.test"


async def test_trigger_can_make_up_an_event_with_nothing_behind_it(api: Api) -> None:
    # case: F24, A47
    set_ = {"id": "sub_nobody", "status": "ACTIVE"}
    made = await api.control("/trigger", {"type": "subscription.created", "set": set_, "any_type": True})
    assert [event["type"] for event in made["events"]] == ["subscription.created"]
    assert (await api.get("/v1/subscriptions/sub_nobody")).status == 404


async def test_trigger_refuses_a_type_that_does_not_exist_and_says_which_do(api: Api) -> None:
    # case: I7
    answer = await api.post("/_sandbox/trigger", {"type": "order.payed"})
    assert answer.status == 400
    assert all(one in answer.json["message"] for one in (*TYPES, "webhook.test"))
    assert "\n" not in answer.json["message"]
    assert (await api.get("/v1/events")).json["items"] == []


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        (["renewed"], "ACTIVE"),
        (["past_due", "payment_failed", "renewed"], "ACTIVE"),
        (["cancel_scheduled", "cancel_withdrawn"], "ACTIVE"),
        (["past_due", "ended"], "ENDED"),
    ],
)
async def test_trigger_goes_on_with_a_subscription_that_is_there(api: Api, steps: list[str], status: str) -> None:
    id_ = (await api.control("/trigger", {"type": "subscription.created"}))["subscription_id"]
    for step in steps:
        made = await api.control("/trigger", {"type": f"subscription.{step}", "subscription": id_})
        assert made["subscription_id"] == id_
        assert f"subscription.{step}" in [event["type"] for event in made["events"]]
    assert (await api.get(f"/v1/subscriptions/{id_}")).json["status"] == status
    assert len((await api.get("/v1/subscriptions")).json["items"]) == 1


async def test_trigger_pays_an_order_that_is_there_late_as_well(api: Api) -> None:
    await api.control("/trigger", {"type": "order.expired", "set": {"order_id": "t-1"}})
    made = await api.control("/trigger", {"type": "order.paid", "order": "t-1"})
    assert [event["type"] for event in made["events"]] == ["order.paid"], "a late payment completes no session"
    assert (await api.get("/v1/orders/lookup", order_id="t-1")).json["status"] == "PAID"
    assert len((await api.get("/v1/orders")).json["items"]) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"type": "subscription.renewed", "subscription": "nobody"}, 404),
        ({"type": "order.paid", "order": "nobody"}, 404),
        ({"type": "order.paid", "subscription": "S"}, 400),
        ({"type": "subscription.renewed", "order": "t-1"}, 400),
        ({"type": "order.paid", "order": 3}, 400),
        ({"type": "order.paid", "order": "t-1", "set": {"amount": "3"}}, 400),
        ({"type": "order.paid", "order": "t-1"}, 409),
        ({"type": "checkout.session.completed", "order": "t-1"}, 409),
        ({"type": "order.expired", "order": "t-1"}, 409),
    ],
)
async def test_trigger_refuses_what_cannot_happen_to_what_is_there(api: Api, body: dict[str, Any], status: int) -> None:
    await api.control("/trigger", {"type": "order.paid", "set": {"order_id": "t-1"}})
    assert (await api.post("/_sandbox/trigger", body)).status == status


async def test_trigger_creates_no_subscription_twice_and_none_is_past_due_twice(api: Api) -> None:
    id_ = (await api.control("/trigger", {"type": "subscription.past_due"}))["subscription_id"]
    for what in ("created", "past_due"):
        refused = await api.post("/_sandbox/trigger", {"type": f"subscription.{what}", "subscription": id_})
        assert refused.status == 409


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
