"""A bare aiohttp handler that only reads the body: `python -m tests.bench.receive.bare` prints its port and serves."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web


async def _read(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b'{"status":"accepted"}', content_type="application/json")


async def _serve() -> None:
    app = web.Application()
    app.router.add_post("/webhooks/{application}", _read)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve())
