"""What others wrote is text on a page, whatever it looks like; and no page shows a payload's personal values."""

from __future__ import annotations

from html.parser import HTMLParser

import orjson
import pytest

from consumer.ledger import Database, audit
from consumer.ledger.handling import events, handlers
from consumer.ledger.reading import quarantine
from consumer.reason import Reason
from tests.console.pages.conftest import Pages, press, text
from tests.contract.ledger import facts
from tests.support.handling.projections import Projections, declared_in, own

HOSTILE = "\"'><script>alert(1)</script>&lt;\u202e`x`{{7*7}}"
PATHS = ("events", "dead", "findings", "quarantine", "handlers", "plans", "audit", "event?id=evt_1", "order?id=A1")

SHOWN = ("quarantine", "handlers", "audit", "event?id=evt_1", "order?id=A1", "find?name=evt_1", "events")
"""Pages on which somebody's words stand."""


class Tags(HTMLParser):
    """The tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.fixture
async def hostile(sqlite_ledger: Database, projections: Projections) -> None:
    """Everywhere where somebody else writes."""
    body = orjson.dumps({"id": "evt_1", "data": {"note": HOSTILE, "customer_email": "ada@example.com"}})
    async with sqlite_ledger.transaction() as session:
        await events.record(session, [facts.event(1, key=f"order:{HOSTILE}", raw=body)], facts.NOW)
        await quarantine.put(session, [(facts.delivery(1, event_id=HOSTILE), Reason.NOT_CONFIRMED)], facts.NOW)
        await handlers.register(session, declared_in("handlers.fulfilment.handler"), facts.NOW)
        about = {"application": "default", "actor": f"operator:{HOSTILE}", "action": HOSTILE, "reason": HOSTILE}
        audit.note(session, at=facts.NOW, subject=f"order:{HOSTILE}", **about)
    said = {"session_id": HOSTILE, "order_id": "A1", "customer": HOSTILE}
    await projections.feed(own("checkout.registered", "order:A1", said))


async def test_no_page_becomes_another_by_what_stands_on_it(pages: Pages, hostile: None) -> None:
    await press(pages, "pause", handler="fulfilment:order_paid", reason=HOSTILE)
    for path in (*PATHS, "find?name=evt_1"):
        seen = await text(pages, f"/console/{path}")
        tags = Tags()
        tags.feed(seen)
        assert "script" not in tags.found, path
        assert not {name for name in tags.attributes if name.startswith("on")}, path
        assert "\u202e" not in seen, "what turns the direction of writing stands there as its escape"
        assert ("{{7*7}}" in seen) == (path in SHOWN), "as it was written, and worked out by nobody"
    for path in (f"find?name={HOSTILE}", f"order?id={HOSTILE}"):
        async with pages.get(f"/console/{path}") as response:
            tags = Tags()
            tags.feed(await response.text())
            assert "script" not in tags.found
    async with pages.get("/console/dead", params={"done": HOSTILE}) as response:
        assert "alert" not in await response.text()


async def test_a_payload_is_shown_without_who_paid(pages: Pages, hostile: None) -> None:
    # case: S9
    seen = await text(pages, "/console/event?id=evt_1")
    assert "ada@example.com" not in seen
    assert "[redacted]" in seen


async def test_an_error_says_nothing_of_itself(pages: Pages, monkeypatch: pytest.MonkeyPatch, hostile: None) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("ada@example.com")

    monkeypatch.setattr(events, "search", broken)
    seen = await text(pages, "/console/events", 500)
    assert "something went wrong here; the log says what" in seen
    assert "ada@" not in seen
