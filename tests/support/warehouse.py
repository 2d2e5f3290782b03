"""A merchant's warehouse: an HTTP server that ships once per idempotency key, and counts every call."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import TracebackType
from typing import Self

from aiohttp import web

PLUGIN = """
from consumer.plugin import Context, Event, handles

@handles("fulfilment.requested", name="warehouse:ship", first_wait_s=0.2, concurrency=32)
async def ship(event: Event, ctx: Context) -> None:
    async with ctx.http.post({url!r}, json={{"order_id": event.order_id}},
                             headers={{"Idempotency-Key": ctx.idempotency_key}}) as answer:
        answer.raise_for_status()
"""


class Warehouse:
    """`async with Warehouse() as warehouse`: listens on `warehouse.url` on the loopback."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.keys: defaultdict[str, set[str]] = defaultdict(set)
        self.url = ""
        self._runner: web.ServerRunner | None = None

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(web.Server(self._ship, access_log=None))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/ship"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def plugin(self) -> str:
        """The source of a plugin that ships here."""
        return PLUGIN.format(url=self.url)

    async def _ship(self, request: web.BaseRequest) -> web.Response:
        order = (await request.json())["order_id"]
        self.calls[order] += 1
        self.keys[order].add(request.headers["Idempotency-Key"])
        return web.json_response({"shipped": order})

    @property
    def parcels(self) -> dict[str, int]:
        """Order to how many parcels left: one per idempotency key."""
        return {order: len(keys) for order, keys in self.keys.items()}
