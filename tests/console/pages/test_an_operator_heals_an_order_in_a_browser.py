"""An operator finds a held order and lets it go, in a browser, by keyboard alone; on a telephone nothing lies beyond
the edge. Needs Chromium."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from playwright.async_api import Browser, Page, ViewportSize, expect

from consumer.console.pages.users import Users
from consumer.ledger import Database
from tests.console.pages.conftest import Open, die
from tests.support.handling.projections import START, Projections, own, said
from tests.support.tools import chromium

PASSWORD = "correct horse battery"
ORDER = "A1/ä &b"
PATHS = (
    "", "events", "dead", "findings", "quarantine", "handlers", "plans", "audit", "event?id=evt_1", "find?name=none",
    "customer?id=c1",
)  # fmt: skip
TELEPHONE: ViewportSize = {"width": 360, "height": 640}
DESK: ViewportSize = {"width": 1280, "height": 800}
PAPER: ViewportSize = {"width": 718, "height": 1000}
"""A4 within its margins."""
CUT = """[...document.querySelectorAll("table")].filter(one => one.getBoundingClientRect().right > innerWidth)
  .map(one => one.closest(".scroll").ariaLabel)"""
BEYOND = """[document.scrollingElement, ...document.querySelectorAll(".scroll")]
  .filter(one => one.scrollWidth > one.clientWidth).map(one => one.getAttribute("aria-label") || "page")"""

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as launched:
        yield launched


@pytest.fixture
async def address(
    open_pages: Open, tmp_path: Path, projections: Projections, sqlite_ledger: Database, three_dead: None
) -> str:
    """Where the pages are; an order is held there, and runs are dead."""
    told = {"session_id": "s1", "order_id": ORDER, "expected_amount": "10", "customer": "c1"}
    await projections.feed(own("checkout.registered", f"order:{ORDER}", told))
    later = START + timedelta(minutes=1)
    await projections.feed(said("order.paid", "evt_paid", order_id=ORDER, amount="9", at=later))
    await projections.feed(own("access.held", "customer:c1", {"by": "operator:ada", "reason": "a chargeback"}))
    await die(sqlite_ledger, (4, "d" * 16))
    file = tmp_path / "users"
    file.write_text(f"ada operator {PasswordHasher().hash(PASSWORD)}")
    pages = await open_pages(Users(file))
    return str(pages.make_url("/console/"))


async def signed_in(browser: Browser, viewport: ViewportSize | None = None) -> tuple[Page, list[str]]:
    """A page of somebody who knows the password, and what the browser complains of."""
    context = await browser.new_context(
        http_credentials={"username": "ada", "password": PASSWORD}, viewport=viewport or DESK
    )
    page, complaints = await context.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return page, complaints


async def test_an_order_is_let_go_by_keyboard(address: str, browser: Browser, projections: Projections) -> None:
    page, complaints = await signed_in(browser)
    await page.goto(address)
    await page.get_by_role("searchbox").focus()
    await page.keyboard.type("s1")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text(f"order {ORDER}")
    await expect(page.get_by_text("held.amount_mismatch")).to_be_visible()
    await page.get_by_label("Why: Let it go").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text(f"order {ORDER}")  # it asks why
    await page.keyboard.type("a voucher")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("Said")
    projections.now = datetime.now(UTC) + timedelta(minutes=1)
    await projections.relay()
    await page.reload()
    await expect(page.get_by_text("held.amount_mismatch")).to_have_count(0)
    await expect(page.get_by_text("fulfilment.requested", exact=True).first).to_be_visible()
    await page.get_by_role("link", name="Audit").click()
    await expect(page.get_by_role("cell", name="operator:ada")).to_be_visible()
    assert complaints == []


async def test_of_two_who_press_the_same_button_one_does_it(address: str, browser: Browser) -> None:
    (page, complaints), (other, more) = await signed_in(browser), await signed_in(browser)
    for one in (page, other):
        await one.goto(f"{address}dead")
        await one.get_by_label("Why: Try again").first.fill("mended")
    for one, told in ((page, "same idempotency keys"), (other, "no longer as the page showed it")):
        await one.get_by_role("button", name="Try again").first.click()
        await expect(one.get_by_role("status")).to_contain_text(told)
    assert complaints == more == []


@pytest.mark.parametrize("viewport", [TELEPHONE, DESK], ids=["telephone", "desk"])
async def test_nothing_lies_beyond_the_edge(address: str, browser: Browser, viewport: ViewportSize) -> None:
    """Of the page, and of each table in it: what is wrong, and the button that mends it, stand in the last columns."""
    page, complaints = await signed_in(browser, viewport)
    for path in PATHS:
        await page.goto(f"{address}{path}")
        assert await page.evaluate(BEYOND) == [], path
    assert [one for one in complaints if "404" not in one] == []


async def test_on_paper_no_column_is_cut(address: str, browser: Browser) -> None:
    """A box that scrolls on a screen showed a reader of the paper its first columns alone."""
    page, _ = await signed_in(browser, PAPER)
    await page.emulate_media(media="print")
    for path in PATHS:
        await page.goto(f"{address}{path}")
        assert await page.evaluate(CUT) == [], path


async def test_each_button_says_of_what_it_is(address: str, browser: Browser) -> None:
    """To who hears the page, or goes from button to button: "Pause", twenty times, names no handler."""
    page, _ = await signed_in(browser)
    for path in ("dead", "findings"):
        await page.goto(f"{address}{path}")
        buttons = page.get_by_role("main").get_by_role("button")
        named = await buttons.evaluate_all("all => all.map(one => one.ariaLabel)")
        assert len(named) > 1
        assert len(set(named)) == len(named), named
