"""The shop's "processing…" page in the README: it says what was proven, whatever the browser came back with."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from consumer.events import Trust
from consumer.ledger import Database
from tests.console.conftest import TOKEN, Client, Open
from tests.console.test_query import run_ended
from tests.support.handling.projections import Projections, observed, said

README = Path(__file__).resolve().parents[2] / "consumer" / "console" / "README.md"
ODD_ID = "A/1 &ü"


@pytest.fixture
async def shop(open_api: Open) -> AsyncIterator[Client]:
    """The README's shop, asking a query API that wants its token."""
    api = await open_api(token=TOKEN)
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(code, str(README), "exec"), names)
    app: web.Application = names["shop"](str(api.make_url("/")).rstrip("/"), TOKEN)
    async with TestClient(TestServer(app, host="127.0.0.1")) as client:
        yield client


async def word(shop: Client, query: str = "") -> str:
    async with shop.get(URL(f"/orders/A%2F1%20%26%C3%BC/word{query}", encoded=True)) as answer:
        assert answer.status == 200
        return await answer.text()


async def test_it_says_paid_when_there_is_proof_and_never_before(
    shop: Client, projections: Projections, sqlite_ledger: Database
) -> None:
    # case: F16, F17
    async with shop.get("/orders/A1?status=succeeded") as page:
        assert "processing" in await page.text()
    assert await word(shop, "?status=succeeded") == "processing", "nobody has heard of the order"
    await projections.feed(observed(f"order:{ODD_ID}", 1, {"status": "PENDING"}))
    assert await word(shop) == "processing"
    await projections.feed(said("order.paid", "evt_1", order_id=ODD_ID, trust=Trust.READ))
    assert await word(shop) == "paid"
    await run_ended(sqlite_ledger, ODD_ID, "shop:ship", "succeeded")
    assert await word(shop) == "delivered"


async def test_a_dead_handler_is_not_called_delivered(
    shop: Client, projections: Projections, sqlite_ledger: Database
) -> None:
    # case: F16
    await projections.feed(said("order.paid", "evt_1", order_id=ODD_ID, trust=Trust.READ))
    await run_ended(sqlite_ledger, ODD_ID, "shop:ship", "dead")
    assert await word(shop) == "we are looking into it"
