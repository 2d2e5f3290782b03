"""An object of the worker's loop is used from a handler's loop: awaited, walked, and through its parts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from consumer.broker import Broker
from consumer.clock import SystemClock
from consumer.ledger import Database
from consumer.plugin import Context, Event, handles
from consumer.telemetry.loop_watch import LoopWatch
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.loop_proxy import LoopProxy
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid


class Orders:
    """As the API client's resources are: bound to the loop they were made on."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.threads: set[int] = set()
        self.closed = 0

    async def lookup(self, order_id: str) -> dict[str, str]:
        assert asyncio.get_running_loop() is self.loop
        self.threads.add(threading.get_ident())
        await asyncio.sleep(0)
        if order_id == "unknown":
            raise LookupError(order_id)
        return {"order_id": order_id}

    async def iterate(self) -> AsyncIterator[int]:
        try:
            for number in range(5):
                assert asyncio.get_running_loop() is self.loop
                yield number
        finally:
            self.closed += 1


class Client:
    """The whole of it."""

    name = "default"

    def __init__(self) -> None:
        self.orders = Orders()

    def at(self, priority: int) -> Client:
        return self


async def test_a_handler_calls_the_client_that_lives_elsewhere(sqlite_ledger: Database, broker: Broker) -> None:
    client, found, own = Client(), [], []

    @handles("order.paid")
    async def looks(event: Event, ctx: Context) -> None:
        payments: object = ctx.payments
        assert isinstance(payments, LoopProxy)
        own.append(threading.get_ident())
        found.append((await ctx.payments.orders.lookup(event.order_id or ""))["order_id"])  # type: ignore[index]  # the stand-in's
        numbers = [number async for number in payments.at(3).orders.iterate()]
        assert numbers == [0, 1, 2, 3, 4]
        assert payments.name == "default"
        async for number in payments.orders.iterate():
            if number == 2:
                break
        with pytest.raises(LookupError):
            await ctx.payments.orders.lookup("unknown")
        async with ctx.http.get("http://127.0.0.1:9/") as _:  # nobody listens: the session itself works on this loop
            pass

    shop = Workshop(sqlite_ledger, broker, [looks])
    shop.contexts = Contexts(shop.clock, payments={"default": client})
    await shop.publish(order_paid(1, "A-1"))
    async with shop.working():
        await eventually(lambda: shop.count(".looks", "retrying", 1))
        await eventually(lambda: found)
    assert found[0] == "A-1"
    assert client.orders.threads == {threading.get_ident()}
    assert threading.get_ident() not in own
    row = (await shop.runs())[0]
    assert (row.reason or "").startswith("ClientConnectorError"), row.reason


# case: H4
async def test_a_transactional_handler_that_blocks_the_worker_is_named(sqlite_ledger: Database, broker: Broker) -> None:
    noticed = threading.Event()

    @handles("order.paid", transactional=True, name="test:greedy")
    async def greedy(event: Event, ctx: Context) -> None:
        assert noticed.wait(20)

    shop = Workshop(sqlite_ledger, broker, [greedy])
    watch = LoopWatch(interval_s=0.02, blocked_after_s=0.2)
    shop.watch = watch
    tell = watch.tell

    def told(on_blocked: object) -> None:
        assert callable(on_blocked)

        def both(blocked: object) -> None:
            on_blocked(blocked)
            noticed.set()

        tell(both)

    watch.tell = told  # type: ignore[method-assign]  # the test listens too
    watch.start()
    try:
        await shop.publish(order_paid(1))
        async with shop.working():
            await eventually(lambda: shop.count("test:greedy", "succeeded", 1))
            await eventually(lambda: shop.figure("consumer_work_handler_blocked_total", handler="test:greedy") >= 1)
    finally:
        await watch.stop()


@pytest.mark.parametrize("has_one", [True, False])
async def test_the_http_session_is_the_workers_where_it_has_one_and_else_of_the_handlers_loop(
    sqlite_ledger: Database, broker: Broker, has_one: bool
) -> None:
    seen: list[Any] = []

    @handles("order.paid", name="test:asks")
    async def asks(event: Event, ctx: Context) -> None:
        seen.append(ctx.http)

    http = object() if has_one else None
    shop = Workshop(sqlite_ledger, broker, [asks], clock=SystemClock())
    shop.contexts = Contexts(shop.clock, http=http)
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(1))
    assert len(seen) == 1
    assert (seen[0] is http) is has_one
    assert isinstance(seen[0], aiohttp.ClientSession) is not has_one
