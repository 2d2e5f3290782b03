"""Fixtures of the sandbox's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from consumer.sandbox import Engine, Sandbox, SandboxConfig
from tests.sandbox.support import Api, Receiver, make_engine


@pytest.fixture
def engine() -> Engine:
    """The simulated service without HTTP, on a clock that stands still."""
    return make_engine()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A webhook endpoint on a free port."""
    receiver = Receiver()
    application = web.Application()
    application.router.add_post("/hook", receiver.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield receiver
    await runner.cleanup()


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    """A served sandbox on a driven clock, without rate limits and without a webhook endpoint."""
    async with Sandbox(SandboxConfig(driven=True, seed=7, limits=False)) as running:
        yield running


@pytest.fixture
async def api(sandbox: Sandbox) -> AsyncIterator[Api]:
    """The seeded application's server, talking to `sandbox`."""
    async with aiohttp.ClientSession() as http:
        yield Api(lambda: sandbox.base_url, http)
