"""A browser pays: redirect mode, popup mode, and the control page. Needs Chromium."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Browser, Page

from consumer.sandbox import Sandbox, SandboxConfig
from tests.sandbox.support import Api, Receiver, subscribe
from tests.support.ports import eventually
from tests.support.tools import chromium

SHOP = "https://shop.example"
OPENER = """<!doctype html><title>Shop</title><script>
window.messages = [];
window.addEventListener("message", (event) => window.messages.push({data: event.data, origin: event.origin}));
</script>"""

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
async def sandbox(receiver: Receiver) -> AsyncIterator[Sandbox]:
    """A sandbox whose clock ticks; a payer's payment finalizes after half a second."""
    config = SandboxConfig(webhook_url=receiver.url, assumptions={"finalize_after_s": 0.5})
    async with Sandbox(config) as running:
        yield running


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as launched:
        yield launched


@pytest.fixture
async def page(browser: Browser) -> Page:
    """A page for which the merchant's shop exists, and nothing else of the world outside."""
    context = await browser.new_context()

    async def shop(route: Any) -> None:
        await route.fulfill(status=200, content_type="text/html", body=OPENER)

    await context.route(f"{SHOP}/**", shop)
    return await context.new_page()


@pytest.fixture
async def api(sandbox: Sandbox) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession() as http:
        yield Api(lambda: sandbox.base_url, http)


async def test_redirect_mode_pays_and_goes_to_success_url_after_three_seconds(page: Page, api: Api) -> None:
    # case: X17, X7
    success = f"{SHOP}/done?order=7"
    session = await api.create(success_url=success, order_id="browser-1")
    await page.goto(session["url"])
    await page.get_by_role("button", name="Pay with wallet").click()
    await page.get_by_text("Paid. Thank you.").wait_for()
    shown_at = time.monotonic()
    await page.wait_for_url(success, timeout=10_000)
    assert 2.0 < time.monotonic() - shown_at < 8.0
    assert page.url == success, "no query parameters are added"
    assert (await api.get("/v1/orders/lookup", order_id="browser-1")).json["status"] == "PAID"


async def test_a_cancel_goes_to_cancel_url_at_once(page: Page, api: Api) -> None:
    # case: X17
    session = await api.create(cancel_url=f"{SHOP}/back")
    await page.goto(session["url"])
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.wait_for_url(f"{SHOP}/back", timeout=5_000)


async def test_an_expired_session_stays_on_the_page(page: Page, api: Api, sandbox: Sandbox) -> None:
    # case: X17
    session = await api.create()
    await page.goto(session["url"])
    await sandbox.advance(1900)
    await page.get_by_text("This link has expired.").wait_for(timeout=5_000)
    assert page.url == session["url"]
    assert not await page.get_by_role("button", name="Pay with wallet").is_visible()


@pytest.mark.parametrize("ending", ["succeeded", "canceled", "expired"])
async def test_popup_mode_posts_the_message_and_closes(page: Page, api: Api, sandbox: Sandbox, ending: str) -> None:
    # case: X18
    session = await api.create(ui_mode="popup", success_url=f"{SHOP}/done", order_id=f"popup-{ending}")
    await page.goto(f"{SHOP}/checkout")
    async with page.expect_popup() as opened:
        await page.evaluate("url => { window.open(url, 'checkout', 'width=480,height=720'); }", session["url"])
    popup = await opened.value
    await popup.wait_for_load_state()
    async with popup.expect_event("close", timeout=10_000):
        if ending == "succeeded":
            await popup.get_by_role("button", name="Pay with wallet").click()
        elif ending == "canceled":
            await popup.get_by_role("button", name="Cancel", exact=True).click()
        else:
            await sandbox.advance(1900)
    messages = await page.evaluate("window.messages")
    assert messages == [
        {
            "data": {"type": "fianto.checkout", "session_id": session["id"], "status": ending},
            "origin": sandbox.base_url,
        }
    ]


async def test_a_popup_posts_nothing_to_another_origin(page: Page, api: Api) -> None:
    # case: X18
    session = await api.create(ui_mode="popup", success_url="https://other.example/done")
    await page.goto(f"{SHOP}/checkout")
    async with page.expect_popup() as opened:
        await page.evaluate("url => { window.open(url, 'checkout', 'width=480,height=720'); }", session["url"])
    popup = await opened.value
    await popup.wait_for_load_state()
    async with popup.expect_event("close", timeout=10_000):
        await popup.get_by_role("button", name="Cancel", exact=True).click()
    assert await page.evaluate("window.messages") == []


async def test_confirm_shows_success_before_anything_is_paid(page: Page, api: Api) -> None:
    # case: X7
    session = await api.create(ui_mode="popup", order_id="confirm")
    await page.goto(session["url"])
    await page.get_by_text("Simulate the chain").click()
    await page.get_by_role("button", name="Confirm only").click()
    await page.get_by_text("Paid. Thank you.").wait_for()
    assert (await api.get("/v1/orders/lookup", order_id="confirm")).json["status"] == "PENDING"
    await page.get_by_role("button", name="Finalize").click()
    await page.locator("#checkout[data-state=succeeded]").wait_for()
    await page.get_by_role("button", name="Finalize", disabled=True).wait_for()
    assert (await api.get("/v1/orders/lookup", order_id="confirm")).json["status"] == "PAID"


async def test_a_plan_that_is_preparing_has_no_pay_button(page: Page, api: Api) -> None:
    # case: X45
    await api.control("/faults", {"plan_failures": 1})
    session = await api.create(mode="subscription", amount=None, description=None, price_id="svc_price_monthly")
    await page.goto(session["url"])
    await page.get_by_text("The subscription plan is being prepared.").wait_for()
    assert not await page.get_by_role("button", name="Pay with wallet").is_visible()
    await api.control("/clock/advance", {"seconds": 31})
    await page.get_by_role("button", name="Pay with wallet").click(timeout=5_000)
    await page.get_by_text("Paid. Thank you.").wait_for()


async def test_the_portal_cancels_and_withdraws(page: Page, api: Api, sandbox: Sandbox) -> None:
    # case: X38, X43
    one = subscribe(sandbox.engine, customer_reference="c")
    await page.goto(f"{sandbox.base_url}/portal/{one.wallet}")
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.get_by_role("button", name="Keep it after all").click()
    await page.get_by_role("button", name="Cancel", exact=True).wait_for()
    assert (await api.get(f"/v1/subscriptions/{one.id}")).json["cancel_at_period_end"] is False


async def test_the_control_page_plays_a_scenario_and_sets_a_switch(page: Page, api: Api, sandbox: Sandbox) -> None:
    # case: X63
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    await page.goto(f"{sandbox.base_url}/_sandbox/")
    await page.get_by_label("scenario").select_option("past-due-recovered")
    await page.get_by_role("button", name="Play the scenario").click()
    await page.get_by_text('"ACTIVE"').wait_for()
    await page.get_by_text("Assumptions: what the specification does not show").click()
    await page.get_by_label("signature", exact=True).select_option("none")
    await eventually(lambda: sandbox.assumptions.text("signature") == "none", within_s=10)
    await page.wait_for_load_state()
    assert len(await api.items("/v1/subscriptions")) == 1
    assert problems == []
