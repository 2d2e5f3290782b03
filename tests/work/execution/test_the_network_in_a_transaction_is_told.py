"""A client of its own inside a transaction is told at run time, with the author's line, and only once a place."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import Context, Event, Handler, handles
from consumer.work.execution.executor import Executor
from consumer.work.execution.network import network_in_transaction
from consumer.work.outcome import Succeeded
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

FILE = "tests/work/execution/test_the_network_in_a_transaction_is_told.py"


async def call(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


# case: H11, G2
async def test_the_line_that_connects_is_named_once(sqlite_ledger: Database, broker: Broker) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    @handles("order.paid", transactional=True, name="test:connects")
    async def connects(event: Event, ctx: Context) -> None:
        await call(port)

    @handles("order.paid", name="test:effect")
    async def effect(event: Event, ctx: Context) -> None:
        await call(port)

    shop = Workshop(sqlite_ledger, broker, [connects, effect])
    with capture_logs() as logs:
        await shop.publish(order_paid(1), order_paid(2))
        async with shop.working():
            await eventually(lambda: shop.count("test:connects", "succeeded", 2))
            await eventually(lambda: shop.count("test:effect", "succeeded", 2))
    server.close()
    told = [line for line in logs if line["event"] == "network_in_transaction"]
    assert [(one["handler"], one["to"]) for one in told] == [("test:connects", f"127.0.0.1:{port}")]
    assert told[0]["where"] == f"{FILE}:{call.__code__.co_firstlineno + 1} in call"


# case: H11
@pytest.mark.parametrize(("module", "is_told"), [("asyncpg.connection", False), ("shop.asyncpg", True)])
async def test_what_the_ledger_itself_connects_is_not_told(module: str, is_told: bool) -> None:
    names: dict[str, Any] = {"__name__": module, "socket": socket}
    exec("def resolve():\n    socket.getaddrinfo('127.0.0.1', 5432)", names)

    async def projects(event: Event, ctx: Context) -> None:
        names["resolve"]()

    handler = Handler(name="test:projects", types=("*",), function=projects, transactional=True)
    with capture_logs() as logs, network_in_transaction.told():
        outcome = await Executor().transactional(handler, order_paid(1), Mock())
    assert outcome == Succeeded()
    told = [line for line in logs if line["event"] == "network_in_transaction"]
    assert [one["to"] for one in told] == (["127.0.0.1:5432"] if is_told else [])
