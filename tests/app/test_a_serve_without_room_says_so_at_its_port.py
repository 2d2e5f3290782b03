"""While a slow log holds all the webhooks that `serve` takes at once, `/readyz` says so: a load balancer sends the next
ones elsewhere. It is ready again as soon as there is room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from consumer.app import App
from consumer.broker import EmbeddedBroker
from consumer.settings import Role, load_settings
from tests.support.ports import eventually


class Probes:
    """What the two ports of a running `serve` answer."""

    def __init__(self, app: App, http: aiohttp.ClientSession) -> None:
        self._app, self._http = app, http

    async def readiness(self) -> tuple[int, dict[str, Any]]:
        async with self._http.get(f"{self._app.internal_url}/readyz") as answer:
            return answer.status, await answer.json()

    async def ready(self) -> bool:
        return (await self.readiness())[0] == 200

    async def not_ready(self) -> dict[str, Any]:
        status, said = await self.readiness()
        return said if status == 503 else {}

    async def webhook(self) -> int:
        url = f"{self._app.public_url}/webhooks/default"
        async with self._http.post(url, json={"id": "evt_1", "type": "order.paid"}) as answer:
            return answer.status


@pytest.fixture
async def probes(tmp_path: Path) -> AsyncIterator[Probes]:
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_AUTHENTICITY": "none",
        "CONSUMER_RECEIVE_MAX_IN_FLIGHT": "1",
        "CONSUMER_LINGER_S": "0",
        "CONSUMER_PORT": "0",
        "CONSUMER_INTERNAL_PORT": "0",
    }
    stop = asyncio.Event()
    async with App(load_settings(environ, Role.SERVE)) as app, aiohttp.ClientSession() as http:
        await app.internal()
        await app.receive()
        running = asyncio.create_task(app.run(stop))
        yield Probes(app, http)
        stop.set()
        await running


# case: I22, O8
async def test_a_serve_without_room_says_so_at_its_port(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    came, release = asyncio.Event(), asyncio.Event()
    publish = EmbeddedBroker.publish

    async def slow(*arguments: Any) -> None:
        came.set()
        await release.wait()
        await publish(*arguments)

    monkeypatch.setattr(EmbeddedBroker, "publish", slow)
    await eventually(probes.ready)
    held = asyncio.create_task(probes.webhook())
    await asyncio.wait_for(came.wait(), 10)
    said = await eventually(probes.not_ready)
    assert [name for name, answer in said["checks"].items() if answer != "ok"] == ["receive"]
    assert (said["status"], said["checks"]["receive"], said["problems"]) == (
        "not_ready",
        "failed",
        {"receive": "not_ready"},
    )
    assert await probes.webhook() == 503
    release.set()
    assert await held == 200
    await eventually(probes.ready)
