"""A merchant's warehouse: an HTTP server that ships once per idempotency key, and counts every call."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from aiohttp import web

from tests.support.loopback import LoopbackServer

PLUGIN = """
from consumer.plugin import Context, Event, handles

@handles("fulfilment.requested", name="warehouse:ship", first_wait_s=0.2, concurrency=32)
async def ship(event: Event, ctx: Context) -> None:
    async with ctx.http.post({url!r}, json={{"order_id": event.order_id}},
                             headers={{"Idempotency-Key": ctx.idempotency_key}}) as answer:
        answer.raise_for_status()
"""


class Warehouse(LoopbackServer):
    """`async with`: listens on `warehouse.url` on the loopback; while it `is_away` it answers 503, and
    nothing before it `goes_on`."""

    def __init__(self) -> None:
        super().__init__(self._ship, "/ship")
        self.calls: Counter[str] = Counter()
        self.keys: defaultdict[str, set[str]] = defaultdict(set)
        self.is_away = False
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    def plugin(self) -> str:
        """The source of a plugin that ships here."""
        return PLUGIN.format(url=self.url)

    async def _ship(self, request: web.BaseRequest) -> web.Response:
        order = (await request.json())["order_id"]
        await self.goes_on.wait()
        if self.is_away:
            return web.json_response({}, status=503)
        self.calls[order] += 1
        self.keys[order].add(request.headers["Idempotency-Key"])
        return web.json_response({"shipped": order})

    @property
    def parcels(self) -> dict[str, int]:
        """Order to how many parcels left: one per idempotency key."""
        return {order: len(keys) for order, keys in self.keys.items()}
