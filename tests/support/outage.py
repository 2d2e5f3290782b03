"""Outages: something the consumer needs is really away while the block runs, and is there again after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from consumer.sandbox import Sandbox
from tests.support.process import ConsumerProcess


@asynccontextmanager
async def endpoint_away(serve: ConsumerProcess) -> AsyncIterator[None]:
    """The only process that receives is killed; at the end it is started again and ready."""
    serve.kill()
    try:
        yield
    finally:
        serve.spawn()
        await serve.ready()


@asynccontextmanager
async def api_away(sandbox: Sandbox) -> AsyncIterator[None]:
    """Every call of the API is answered 401."""
    sandbox.engine.faults.set({"unauthorized": 1})
    try:
        yield
    finally:
        sandbox.engine.faults.set({"unauthorized": 0})


@asynccontextmanager
async def server_away(stop: Callable[[], None], start: Callable[[], None]) -> AsyncIterator[None]:
    """A server (Kafka, PostgreSQL) is stopped and started again by these blocking calls."""
    await asyncio.to_thread(stop)
    try:
        yield
    finally:
        await asyncio.to_thread(start)
