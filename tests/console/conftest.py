"""Fixtures: the query API on a real ledger, with both projections beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from consumer.clock import DrivenClock
from consumer.console.query import query_routes
from consumer.ledger import Database
from tests.support.handling.projections import START, Projections

TOKEN = "a-token-for-tests"
Client = TestClient[web.Request, web.Application]
Open = Callable[..., Awaitable[Client]]


@pytest.fixture
def clock() -> DrivenClock:
    return DrivenClock(START)


@pytest.fixture
def projections(sqlite_ledger: Database) -> Projections:
    """Both built-in plugins."""
    options = {"handlers.fulfilment.handler": {"matching": "off"}, "handlers.access.handler": {}}
    return Projections(sqlite_ledger, *options, options=options)


@pytest.fixture
async def open_api(sqlite_ledger: Database, clock: DrivenClock) -> AsyncIterator[Open]:
    """Opens a query API; closed at the end."""
    clients: list[Client] = []

    async def open_(database: Database = sqlite_ledger, **given: Any) -> Client:
        app = web.Application()
        settings: dict[str, Any] = {"token": None, "applications": ["default", "other"]} | given
        query_routes(app, database=database, clock=clock, **settings)
        clients.append(client := await listening(app))
        return client

    yield open_
    for client in clients:
        await client.close()


async def listening(app: web.Application) -> Client:
    """A client of the application, which listens on the loopback."""
    client: Client = TestClient(TestServer(app, host="127.0.0.1"))
    await client.start_server()
    return client


@pytest.fixture
async def api(open_api: Open) -> Client:
    """Without a token, with two applications."""
    return await open_api()
