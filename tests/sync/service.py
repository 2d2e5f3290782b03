"""A scripted service for what the simulator does not do on demand: odd lists, one answer an address, failures."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Json = dict[str, Any]
EventsList = Callable[[str | None, int], Json | int]


@dataclass
class ScriptedService:
    """Records by path; `failing` answers a path (or `*`) with a status, `failing_once` one call; `calls` counts."""

    records: dict[str, Json] = field(default_factory=lambda: {"/v1/application": {"id": "svc_app_test"}})
    lists: dict[str, EventsList] = field(default_factory=dict)
    failing: dict[str, int] = field(default_factory=dict)
    failing_once: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    gate: asyncio.Event | None = None
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""

    def event(self, number: int, kind: str = "order.paid", **data: Any) -> Json:
        """Add an event that can be read by its id."""
        found = {"id": f"evt_{number:06d}", "type": kind, "data": {"object": data}}
        self.records[f"/v1/events/{found['id']}"] = found
        return found

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path
        if path == "/v1/orders/lookup":
            path += "?" + request.query["order_id"]
        self.calls[path] += 1
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        for number, (where, status, headers) in enumerate(self.failing_once):
            if where == path:
                del self.failing_once[number]
                return web.json_response({"statusCode": status}, status=status, headers=headers)
        if status := self.failing.get(path, self.failing.get("*", 0)):
            return web.json_response({"statusCode": status, "code": "made_up", "message": "scripted"}, status=status)
        if path in self.lists:
            page = self.lists[path](request.query.get("cursor"), int(request.query.get("limit", "20")))
            return web.json_response({}, status=page) if isinstance(page, int) else web.json_response(page)
        if path in self.records:
            return web.json_response(self.records[path])
        return web.json_response({"statusCode": 404, "message": "not found"}, status=404)


@asynccontextmanager
async def scripted_service() -> AsyncIterator[ScriptedService]:
    """The service on a free port of loopback."""
    service = ScriptedService()
    app = web.Application()
    app.router.add_get("/{path:.*}", service.answer)
    app.router.add_post("/v1/webhook/test-event", service.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        if service.gate is not None:
            service.gate.set()
        await runner.cleanup()
