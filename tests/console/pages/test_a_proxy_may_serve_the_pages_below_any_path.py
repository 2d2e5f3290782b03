"""A proxy may serve the pages below any path: what a page or an answer leads to is relative, and stays among them."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from yarl import URL

from tests.console.pages.conftest import Pages, text
from tests.support.handling.projections import Projections, said

PATHS = (
    "", "events", "dead", "findings", "quarantine", "handlers", "plans", "audit", "event?id=evt_1", "order?id=A1",
    "customer?id=c1",
)  # fmt: skip
REFUSED = ("nothing", "nothing/at/all", "find?name=none", "a%2Fb", "//", "act/pause")
BELOW = URL("https://ops.example/payments/console/")
"""Where a proxy serves what is here below `/console/`."""


class Ways(HTMLParser):
    """Where a page leads, and what it is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("href", "action", "src") and value]


def ways(page: str) -> list[str]:
    found = Ways()
    found.feed(page)
    return [way for way in found.found if not way.startswith(("#", "data:"))]


async def test_every_way_stays_among_the_pages(pages: Pages, projections: Projections, three_dead: None) -> None:
    await projections.feed(said("order.paid", "evt_paid", order_id="A1", amount="9", customer_reference="c1"))
    for path in PATHS:
        found = ways(await text(pages, f"/console/{path}"))
        assert len(found) > 9
        for way in found:
            assert URL(f"{BELOW}{path}").join(URL(way)).path.startswith(BELOW.path), (path, way)


@pytest.mark.parametrize("path", REFUSED)
async def test_a_page_that_refuses_leads_back(pages: Pages, path: str) -> None:
    async with pages.get(URL(f"/console/{path}", encoded=True)) as response:
        assert response.status in (404, 405)
        found = {URL(f"{BELOW}{path}", encoded=True).join(URL(way)).path for way in ways(await response.text())}
    assert {f"{BELOW.path}{name}" for name in ("", "dead", "find", "assets/console.css")} <= found


@pytest.mark.parametrize(
    ("path", "leads"),
    [("/", "console/"), ("/console", "console/"), ("/console/find?name=A1", "order?id=A1&application=default")],
)
async def test_an_answer_that_leads_on_is_relative(
    pages: Pages, projections: Projections, path: str, leads: str
) -> None:
    await projections.feed(said("order.paid", "evt_paid", order_id="A1", amount="9"))
    async with pages.get(path, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, leads)


async def test_a_button_leads_back_to_its_page(pages: Pages, three_dead: None) -> None:
    form = {"handler": "shop:ship", "fingerprint": "b" * 16, "seen": "2026-01-02T00:00:00+00:00", "reason": "mended"}
    async with pages.post("/console/act/redrive", data=form, allow_redirects=False) as response:
        assert response.status == 303
        assert response.headers["Location"].startswith("../dead?done=")
