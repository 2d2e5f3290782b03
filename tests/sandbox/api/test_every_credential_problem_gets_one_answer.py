"""Credentials: one answer for every problem, and the dashboard's actions on secrets and applications."""

from __future__ import annotations

import base64
import re

import pytest

from consumer.sandbox import DEFAULT_APP_ID, DEFAULT_APP_SECRET, Engine, Refusal, Sandbox
from consumer.sandbox.engine.records import DeliveryStatus
from tests.sandbox.support import Api, basic, create, make_engine

WRONG: dict[str, str | None] = {
    "no header": None,
    "empty": "",
    "bearer": f"Bearer {DEFAULT_APP_SECRET}",
    "not base64": "Basic %%%",
    "not text": "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(),
    "no colon": "Basic " + base64.b64encode(b"svc_app_sandbox").decode(),
    "unknown app": basic("svc_app_nobody"),
    "unknown secret": basic(secret="svc_sk_live_other"),
    "empty secret": basic(secret=""),
}


async def test_every_credential_problem_gets_the_same_answer(api: Api, sandbox: Sandbox) -> None:
    # case: X49
    answers = {}
    for name, header in WRONG.items():
        answers[name] = await api.call("GET", "/v1/application", headers={"Authorization": header})
    rolled = sandbox.engine.applications.roll_secret(DEFAULT_APP_ID, "immediately")
    answers["revoked"] = await api.get("/v1/application")
    api.authorization = basic(secret=rolled)
    await api.control("/merchants/mer_sandbox", {"active": False})
    answers["merchant not active"] = await api.get("/v1/application")
    await api.control("/merchants/mer_sandbox", {"active": True})
    assert (await api.get("/v1/application")).status == 200
    await api.control(f"/applications/{DEFAULT_APP_ID}/disable")
    answers["disabled"] = await api.get("/v1/application")

    bodies = {re.sub("req_[A-Za-z0-9]+", "req_", reply.text) for reply in answers.values()}
    assert len(bodies) == 1
    for name, reply in answers.items():
        assert reply.status == 401, name
        assert re.fullmatch(r'Basic realm=".+"', reply.headers["WWW-Authenticate"])
        assert reply.code == "invalid_api_credentials"
        assert reply.json["error"] == "Unauthorized"


@pytest.mark.parametrize(("grace", "seconds"), [("immediately", 0), ("1h", 3600), ("24h", 86400)])
def test_a_rolled_secret_works_for_its_grace(engine: Engine, grace: str, seconds: int) -> None:
    # case: X50
    new = engine.applications.roll_secret(DEFAULT_APP_ID, grace)
    engine.applications.authenticate(basic(secret=new))
    if seconds:
        engine.advance(seconds - 1)
        engine.applications.authenticate(basic())
        engine.advance(1)
    with pytest.raises(Refusal, match="invalid_api_credentials"):
        engine.applications.authenticate(basic())
    engine.applications.authenticate(basic(secret=new))


@pytest.mark.parametrize("switch", ["revoke_oldest", "refuse"])
def test_never_three_secrets(switch: str) -> None:
    # case: X50
    engine = make_engine(roll_with_two_valid=switch)
    second = engine.applications.roll_secret(DEFAULT_APP_ID, "24h")
    if switch == "refuse":
        with pytest.raises(Refusal, match="two secrets"):
            engine.applications.roll_secret(DEFAULT_APP_ID, "24h")
        return
    third = engine.applications.roll_secret(DEFAULT_APP_ID, "24h")
    with pytest.raises(Refusal):
        engine.applications.authenticate(basic())
    for secret in (second, third):
        engine.applications.authenticate(basic(secret=secret))


def test_the_grace_of_a_roll_is_an_hour_unless_said(engine: Engine) -> None:
    # case: X50
    engine.applications.roll_secret(DEFAULT_APP_ID)
    secrets = engine.applications.valid_secrets(engine.applications.get(DEFAULT_APP_ID))
    [ends] = [one.expires_at for one in secrets if one.expires_at is not None]
    assert (ends - engine.clock.now()).total_seconds() == 3600


async def test_a_deactivated_merchant_is_refused_until_reactivated(api: Api) -> None:
    # case: X51
    await api.control("/merchants/mer_sandbox", {"active": False})
    for path in ("/v1/application", "/v1/events", "/v1/orders"):
        assert (await api.get(path)).code == "invalid_api_credentials"
    await api.control("/merchants/mer_sandbox", {"active": True})
    assert (await api.get("/v1/application")).json["id"] == DEFAULT_APP_ID


def test_disabling_an_application_is_for_ever(engine: Engine) -> None:
    # case: X52
    engine.applications.set_webhook(DEFAULT_APP_ID, "http://127.0.0.1:9/")
    engine.payments.pay(create(engine))
    assert engine.disable(DEFAULT_APP_ID) == 2
    assert {d.status for d in engine.world.deliveries} == {DeliveryStatus.CANCELED}
    assert engine.applications.get(DEFAULT_APP_ID).webhook_url is None
    with pytest.raises(Refusal, match="invalid_api_credentials"):
        engine.applications.authenticate(basic())
    with pytest.raises(Refusal, match="disabled"):
        engine.applications.roll_secret(DEFAULT_APP_ID)
    engine.payments.pay(create(engine))
    assert len(engine.world.deliveries) == 2, "an event after that is delivered nowhere"


def test_ten_active_and_a_hundred_applications(engine: Engine) -> None:
    # case: X53
    merchant_id = engine.application.merchant_id
    for _ in range(9):
        engine.applications.add(merchant_id, "more")
    with pytest.raises(Refusal, match="10 active"):
        engine.applications.add(merchant_id, "eleventh")
    for _ in range(90):
        last = list(engine.world.applications)[-1]
        engine.disable(last.id)
        engine.applications.add(merchant_id, "again")
    engine.disable(list(engine.world.applications)[-1].id)
    with pytest.raises(Refusal, match="100 applications in total"):
        engine.applications.add(merchant_id, "hundred and first")


async def test_an_application_sees_only_its_own(api: Api) -> None:
    # case: X56
    session = await api.create(order_id="shared")
    await api.control(f"/sessions/{session['id']}/pay")
    other = await api.control("/applications", {"app_name": "B"})
    mine = {
        "checkout-sessions": session["id"],
        "orders": session["order"]["id"],
        "payments": (await api.items("/v1/payments"))[0]["id"],
        "events": (await api.items("/v1/events"))[0]["id"],
    }
    api.authorization = basic(other["app_id"], other["app_secret"])
    assert (await api.get("/v1/application")).json["id"] == other["app_id"]
    for noun, one in mine.items():
        assert (await api.get(f"/v1/{noun}/{one}")).status == 404, noun
    for noun in ("orders", "payments", "subscriptions", "events"):
        assert await api.items(f"/v1/{noun}") == []
    assert (await api.post(f"/v1/checkout-sessions/{session['id']}/cancel")).status == 404
    assert (await api.get("/v1/orders/lookup", order_id="shared")).status == 404
    assert len(await api.items("/v1/products")) == 3
    assert len(await api.items("/v1/prices")) == 5
    again = await api.create(order_id="shared")
    assert again["id"] != session["id"], "the same order_id is another order in another application"


def test_event_ids_may_repeat_across_applications() -> None:
    # case: X56
    engine = make_engine(event_ids="per_application")
    other, _ = engine.applications.add(engine.application.merchant_id, "B")
    engine.sessions.cancel(create(engine))
    engine.sessions.cancel(create(engine, other))
    assert {event.id.rpartition("/")[2] for event in engine.world.events} == {"evt_000001"}
    assert len(engine.world.events) == 2
