"""The web shop in the README, on `consumer dev`: it sells, and says what was proven, whatever the browser came back
with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from consumer.shop import Shop
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended

README = Path(__file__).resolve().parents[2] / "consumer" / "shop" / "README.md"
SHIPS = """
from consumer.plugin import Context, Event, handles

@handles("fulfilment.requested", name="webshop:ship")
async def ship(event: Event, ctx: Context) -> None:
    ctx.log.info("shipped")
"""


def code_of_the_readme() -> dict[str, Any]:
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(code, str(README), "exec"), names)
    return names


# case: F16, F17, H12
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_it_sells_and_says_what_was_proven(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    environ = install_plugin(tmp_path / "path", "webshop", SHIPS)
    environ |= {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
    }
    dev = ConsumerProcess("dev", environ, tmp_path, arguments=("--sandbox-port", "0", "--data", str(tmp_path / "data")))
    with ended(dev):
        dev.spawn()
        await dev.ready()
        service, query_api = dev.addresses["sandbox_url"], dev.addresses["internal_url"]
        shop = Shop.at(service, "svc_app_sandbox", "svc_sk_live_sandbox", query_api=query_api)
        app = code_of_the_readme()["web_shop"](shop)
        async with TestClient(TestServer(app, host="127.0.0.1")) as browser:

            async def says(word: str) -> bool:
                async with browser.get("/orders/A-1?status=succeeded") as page:
                    return await page.text() == word

            async with browser.post("/orders/A-1/buy", allow_redirects=False) as answer:
                assert answer.status == 303, await answer.text()
                assert answer.headers["Location"].startswith(service)
            assert await says("processing"), "coming back proves nothing"
            [session] = await sessions_of(query_api, "A-1")
            async with aiohttp.ClientSession() as payer:
                pay = f"{service}/_sandbox/sessions/{session}/pay"
                async with payer.post(pay, json={"until": "finalized"}) as paid:
                    assert paid.status == 200
            await eventually(lambda: says("delivered"), within_s=60, every_s=0.2)
            async with browser.post("/orders/A-1/buy", allow_redirects=False) as again:
                assert again.headers["Location"] == "/orders/A-1", "it is paid already"
            order = await shop.order("A-1")
            assert order.is_paid
            assert (order.more["customer"], order.more["expected_amount"]) == ("ada", "25.00")


async def sessions_of(query_api: str, order_id: str) -> list[str]:
    async with aiohttp.ClientSession() as http, http.get(f"{query_api}/api/orders/{order_id}") as answer:
        return [one["session_id"] for one in (await answer.json())["sessions"]]
