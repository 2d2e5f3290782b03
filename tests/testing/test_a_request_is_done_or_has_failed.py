"""A request that a handler makes is done as it was made, or it has failed: no redirect loses what it carries, it brings
nothing of another application's, and no neighbour's threads keep it waiting. In the kit as in a worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from consumer.plugin import Context, Event, handles
from consumer.plugin.http import open_session
from consumer.testing import Answer, Workbench
from consumer.work.execution.loop_thread import THREADS, LoopThread
from consumer.work.execution.matter import Matter


@asynccontextmanager
async def warehouse(status: int = 200) -> AsyncIterator[tuple[str, list[tuple[str, str, str | None]]]]:
    """It makes parcels at `/parcels/`, and says at `/parcels` with this status that they are made there. What it was
    asked: method, path, the cookie that came."""
    asked: list[tuple[str, str, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.method, request.path, request.cookies.get("session")))
        if request.path == "/parcels":
            return web.Response(status=status, headers={"Location": "/parcels/"})
        made = web.json_response({"body": await request.text()})
        made.set_cookie("session", "of the first")
        return made

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://localhost:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


# case: H2
@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_loses_the_body_is_a_failure(status: int) -> None:
    async with warehouse(status) as (address, asked), open_session() as session:
        with pytest.raises(aiohttp.ClientResponseError, match="would be sent on as a GET, without its body") as told:
            await session.post(f"{address}/parcels", json={"order": "A-1"})
        assert told.value.status == status
        assert [method for method, *_ in asked] == ["POST"]
        async with session.get(f"{address}/parcels") as answer:
            assert answer.status == 200, "who reads may be sent on"


# case: H2
@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_that_keeps_it_is_followed(status: int) -> None:
    async with warehouse(status) as (address, asked), open_session() as session:
        async with session.post(f"{address}/parcels", data="A-1") as answer:
            assert (await answer.json())["body"] == "A-1"
        assert [(method, path) for method, path, _ in asked] == [("POST", "/parcels"), ("POST", "/parcels/")]


async def test_a_request_may_take_as_long_as_its_handler() -> None:
    """A warehouse that answers after 33 s was given up after 30, and asked again, whatever `timeout_s` said."""
    async with open_session() as session:
        assert (session.timeout.total, session.timeout.sock_read) == (None, None)
        assert session.timeout.sock_connect == 30


async def test_no_cookie_goes_with_the_next_request() -> None:
    async with warehouse() as (address, asked), open_session() as session:
        for _ in range(2):
            async with session.post(f"{address}/parcels/") as answer:
                assert answer.headers["Set-Cookie"]
        assert [cookie for *_, cookie in asked] == [None, None]


# case: H4
async def test_hung_threads_of_a_handler_keep_no_other_from_its_request() -> None:
    hang, loop = threading.Event(), LoopThread("shop", on_blocked=lambda *_: None, blocked_after_s=60.0)
    done: list[int] = []
    answered = threading.Event()

    async def hung() -> None:
        await asyncio.to_thread(hang.wait)

    async def asks(address: str) -> None:
        async with loop.http.post(f"{address}/parcels/") as answer:
            done.append(answer.status)
        answered.set()

    def begin(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop.create_task(work(), Matter("handler"))

    loop.start()
    try:
        async with warehouse() as (address, _):
            for _ in range(THREADS + 6):
                loop.call(begin, hung)
            loop.call(begin, lambda: asks(address))
            assert await asyncio.to_thread(answered.wait, 20)
    finally:
        hang.set()
        await loop.stop(5.0)
    assert done == [200]


# case: H2
@pytest.mark.parametrize(
    ("status", "headers", "ends"),
    [(301, {"Location": "/parcels/"}, "retrying"), (307, {}, "succeeded"), (200, {}, "succeeded")],
)
def test_a_redirect_does_not_pass_the_kit(
    workbench: Workbench, status: int, headers: dict[str, str], ends: str
) -> None:
    @handles("fulfilment.requested", name="shop:ship")
    async def ship(event: Event, ctx: Context) -> None:
        async with ctx.http.post("https://warehouse.example/parcels", json={"order": event.order_id}) as answer:
            answer.raise_for_status()

    workbench.outside.answer = lambda _: Answer(status=status, headers=headers)
    workbench.run(ship, workbench.event("fulfilment.requested", order_id="A-1"))
    assert [run.status for run in workbench.runs] == [ends]
