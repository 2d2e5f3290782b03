"""Webhooks that are posted where no application is are told by `status`: no walk brings what they say, and nothing else
shows that an application which left the settings goes on selling."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import orjson

from consumer.app.root import App
from consumer.settings import Role, load_settings
from tests.support.desk import Desk


# case: I14, O1
async def test_an_application_that_left_the_settings(tmp_path: Path) -> None:
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_PORT": "0",
        "CONSUMER_INTERNAL_PORT": "0",
        "CONSUMER_LINGER_S": "0",
        "SVC_BASE_URL": "http://127.0.0.1:9",
        "SVC_APP_ID": "svc_app_x",
        "SVC_APP_SECRET": "svc_sk_live_x",
    }
    await asyncio.to_thread(Desk(environ).call, "db", "upgrade")
    async with App(load_settings(environ, Role.SERVE)) as app, aiohttp.ClientSession() as http:
        await app.receive()
        for number in range(3):
            await app._heartbeat.beat()
            assert "webhooks_misaddressed" not in await found(environ), number
            body = {"id": f"evt_{number}", "type": "order.paid"}
            async with http.post(f"{app.public_url}/webhooks/shop2", json=body) as answer:
                assert answer.status == 404
        await app._heartbeat.beat()
        text = (await found(environ))["webhooks_misaddressed"]
    assert text.startswith("3 webhook(s) were posted to an address that no application has (/webhooks/shop2), the last")


async def found(environ: dict[str, str]) -> dict[str, str]:
    """What `status` says, by its codes."""
    done = await asyncio.to_thread(Desk(environ).call, "status", "--json")
    return {one["code"]: one["text"] for one in orjson.loads(done.stdout)["findings"]}
