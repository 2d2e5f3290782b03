"""The hosted checkout page over HTTP; what a browser makes of it is in test_a_browser_pays.py."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.sandbox import Sandbox
from tests.sandbox.support import DAY_S, Api, Reply, again, create, subscribe


async def path_of(api: Api, **changes: Any) -> tuple[Any, str]:
    session = await api.create(**changes)
    return session, "/checkout/" + session["url"].rpartition("/")[2]


async def press(api: Api, path: str, action: str) -> Reply:
    return await api.call("POST", f"{path}/{action}")


async def test_redirect_mode_says_where_to_go_and_adds_nothing(api: Api) -> None:
    # case: X17
    success = "https://shop.example/done?order=7#top"
    _, path = await path_of(api, success_url=success)
    state = (await api.get(f"{path}/state")).json
    assert (state["state"], state["status"], state["redirect_to"]) == ("ready", None, None)
    state = (await press(api, path, "pay")).json
    assert (state["status"], state["redirect_to"], state["redirect_after_ms"]) == ("succeeded", success, 3000)
    assert (state["session_status"], state["payment_status"]) == ("OPEN", "CONFIRMED")


async def test_a_cancel_goes_to_cancel_url_and_an_expired_session_stays(api: Api, sandbox: Sandbox) -> None:
    # case: X17
    _, path = await path_of(api)
    state = (await press(api, path, "cancel")).json
    assert (state["status"], state["redirect_to"]) == ("canceled", "https://shop.example/back")
    _, path = await path_of(api)
    await sandbox.advance(1831)
    state = (await api.get(f"{path}/state")).json
    assert (state["state"], state["redirect_to"]) == ("expired", None)


async def test_popup_mode_posts_to_the_origin_of_success_url(api: Api, sandbox: Sandbox) -> None:
    # case: X18
    session, path = await path_of(api, ui_mode="popup", success_url="https://shop.example:8443/done?x=1")
    state = (await press(api, path, "pay")).json
    assert (state["origin"], state["redirect_to"]) == ("https://shop.example:8443", None)
    assert (state["session_id"], state["status"]) == (session["id"], "succeeded")
    _, canceled = await path_of(api, ui_mode="popup")
    assert (await press(api, canceled, "cancel")).json["status"] == "canceled"
    _, expired = await path_of(api, ui_mode="popup")
    await sandbox.advance(1831)
    assert (await api.get(f"{expired}/state")).json["status"] == "expired"


async def test_paying_finalizes_by_itself_after_a_while(api: Api, sandbox: Sandbox) -> None:
    # case: X7
    _, path = await path_of(api)
    await press(api, path, "pay")
    assert await api.items("/v1/events") == []
    await sandbox.advance(5)
    assert {event["type"] for event in await api.items("/v1/events")} == {"order.paid", "checkout.session.completed"}


async def test_confirm_finalize_and_fail_are_separate_buttons(api: Api, sandbox: Sandbox) -> None:
    # case: X7, X16
    _, path = await path_of(api)
    assert (await press(api, path, "confirm")).json["final"] is False
    await sandbox.advance(600)
    assert (await press(api, path, "cancel")).code == "payment_in_progress"
    assert (await press(api, path, "fail")).json["state"] == "ready"
    assert (await press(api, path, "fail")).status == 409
    assert (await press(api, path, "finalize")).json["final"] is True


async def test_the_pages_refusals(api: Api, sandbox: Sandbox) -> None:
    # case: X16, X45
    session, path = await path_of(api)
    for _ in range(30):
        await api.control(f"/sessions/{session['id']}/build", {"succeeds": False})
    assert (await api.get(f"{path}/state")).json["state"] == "build_limit_reached"
    assert (await press(api, path, "pay")).code == "build_limit_reached"
    _, path = await path_of(api)
    await sandbox.advance(1800 - 119)
    assert (await press(api, path, "pay")).code == "too_close_to_expiry"
    assert (await api.get(f"{path}/state")).json["state"] == "too_close_to_expiry"


async def test_a_plan_that_is_not_ready_has_no_pay_button(api: Api, sandbox: Sandbox) -> None:
    # case: X45
    await api.control("/faults", {"plan_failures": 5})
    _, path = await path_of(api, mode="subscription", amount=None, description=None, price_id="svc_price_monthly",
                            expires_at="2026-01-01T20:00:00Z")  # fmt: skip
    state = (await api.get(f"{path}/state")).json
    assert (state["state"], state["plan_status"]) == ("subscription_preparing", "preparing")
    assert (await press(api, path, "pay")).code == "subscription_preparing"
    await sandbox.advance(30 + 120 + 600 + 3600)
    state = (await api.get(f"{path}/state")).json
    assert (state["state"], state["plan_status"]) == ("subscription_plan_failed", "failed")
    assert (await press(api, path, "pay")).code == "subscription_plan_failed"


async def test_the_page_escapes_what_the_merchant_sent(api: Api) -> None:
    # case: X17
    _, path = await path_of(api, description="<script>alert(1)</script>", order_id='"><b>x')
    page = await api.get(path)
    assert "<script>alert" not in page.text
    assert "<b>x" not in page.text
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["Referrer-Policy"] == "no-referrer"


async def test_no_other_site_presses_the_buttons(api: Api) -> None:
    # case: X17
    _, path = await path_of(api)
    reply = await api.call("POST", f"{path}/cancel", headers={"Origin": "https://evil.example"})
    assert reply.status == 403
    assert (await press(api, path, "explode")).status == 404


async def test_the_portal(api: Api, sandbox: Sandbox) -> None:
    # case: X38, X40, X43
    engine = sandbox.engine
    one = subscribe(engine, customer_reference="c")
    path = f"/portal/{one.wallet}"
    assert ">\n        Cancel\n" in (await api.get(path)).text
    assert (await api.call("POST", f"{path}/{one.id}/cancel")).status == 200
    assert (await api.call("POST", f"{path}/{one.id}/withdraw")).status == 200
    engine.subscriptions.cancel(again(engine, one), "period_end")
    assert "<button" not in (await api.get(path)).text
    await sandbox.advance(30 * DAY_S)
    assert "Cancel on Solana" in (await api.get(path)).text
    assert (await api.call("POST", f"{path}/{one.id}/cancel-on-solana")).json["onchain"] == "ending"
    await sandbox.advance(30 * DAY_S)
    assert "Reclaim rent" in (await api.get(path)).text
    assert (await api.call("POST", f"{path}/{one.id}/reclaim-rent")).json["onchain"] == "reclaimed"
    assert (await api.call("POST", f"/portal/other/{one.id}/cancel")).status == 404
    assert create(engine, mode="subscription", price_id="svc_price_monthly", customer_reference="c").status == "OPEN"


@pytest.mark.parametrize("name", ["page.css", "checkout.js", "portal.js"])
async def test_assets(api: Api, name: str) -> None:
    assert (await api.get(f"/checkout/assets/{name}")).status == 200
    assert (await api.get("/checkout/assets/routes.py")).status == 404
