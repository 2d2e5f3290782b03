"""What `ctx.http` of the kit gives is what a real session gives: each way to ask is played against both."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from consumer.plugin import Context, Event, handles
from consumer.testing import Answer, Outside, Workbench, assert_idempotent

ITEMS = b'{"items": [1, 2]}\nsecond line\n'
ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "/json": (200, {"Content-Type": "application/json"}, b'{"id": "P-1"}'),
    "/problem": (422, {"Content-Type": "application/problem+json; charset=utf-8"}, b'{"code": "no"}'),
    "/text": (200, {"Content-Type": "text/plain; charset=latin-1"}, "Käse".encode("latin-1")),
    "/empty": (204, {"Content-Type": "application/json"}, b""),
    "/lines": (200, {"Content-Type": "application/octet-stream"}, ITEMS),
    "/odd": (599, {"Content-Type": "text/html"}, b"<p>"),
}
Session = Any
Asking = Callable[[Session, str], Awaitable[Any]]


async def looked(answer: Any) -> dict[str, Any]:
    """What a handler may look at."""
    body = await answer.read()
    return {
        "status": answer.status, "ok": answer.ok, "content_type": answer.content_type,
        "charset": answer.charset, "encoding": answer.get_encoding(), "method": answer.method,
        "path": answer.url.path, "history": answer.history, "header": answer.headers["content-type"],
        "read": body, "length": answer.content_length,
    }  # fmt: skip


async def verbs(session: Session, base: str) -> Any:
    found: list[Any] = []
    for verb in ("get", "options", "post", "put", "patch", "delete"):
        async with getattr(session, verb)(f"{base}/json") as answer:
            found.append(await looked(answer))
    async with session.request("get", f"{base}/json", params={"a": "1"}) as answer:
        found.append((answer.url.query_string, await answer.json()))
    return found


async def kinds(session: Session, base: str) -> Any:
    found = []
    for path in ANSWERS:
        async with session.get(f"{base}{path}") as answer:
            found.append(await looked(answer))
    return found


async def reasons(session: Session, base: str) -> Any:
    return [(await session.get(f"{base}{path}")).reason for path in ("/json", "/problem", "/empty")]


async def head(session: Session, base: str) -> Any:
    async with session.head(f"{base}/json") as answer:
        return await looked(answer)


async def read_as_json(session: Session, base: str) -> Any:
    found: list[Any] = []
    for path in ("/json", "/problem", "/text", "/empty", "/odd"):
        async with session.get(f"{base}{path}") as answer:
            try:
                found.append(await answer.json())
            except aiohttp.ContentTypeError as error:
                found.append((error.status, error.message))
    async with session.get(f"{base}/lines") as answer:
        with pytest.raises(ValueError, match="Extra data"):
            await answer.json(content_type=None)
    return found


async def raised(session: Session, base: str) -> Any:
    found = []
    for options in ({}, {"raise_for_status": True}):
        try:
            answer = await session.get(f"{base}/problem", **options)
            answer.raise_for_status()
        except aiohttp.ClientResponseError as error:
            found.append((error.status, error.message, error.request_info.method, error.request_info.url.path))
    return found


async def streamed(session: Session, base: str) -> Any:
    found: list[Any] = []
    async with session.get(f"{base}/lines") as answer:
        found.append([line async for line in answer.content])
    async with session.get(f"{base}/lines") as answer:
        found.append((await answer.content.read(4), await answer.content.readline(), answer.content.at_eof()))
    async with session.get(f"{base}/lines") as answer:
        found.append(b"".join([piece async for piece in answer.content.iter_chunked(5)]))
    async with session.get(f"{base}/lines") as answer:
        found.append(b"".join([piece async for piece in answer.content.iter_any()]))
    return found


async def at_once(session: Session, base: str) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(session.get(f"{base}{path}")) for path in ("/json", "/text")]
    gathered = await asyncio.gather(session.get(f"{base}/json"), session.get(f"{base}/odd"))
    in_time = await asyncio.wait_for(session.get(f"{base}/json"), 5)
    found = [*(task.result() for task in tasks), *gathered, in_time]
    statuses = [answer.status for answer in found]
    for answer in found:
        await answer.release()
    return statuses


async def wrong(session: Session, base: str) -> Any:
    found = []
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("get", "parcels", {}),
        ("get", "ftp://shop.example/parcels", {}),
        ("post", f"{base}/json", {"json": {}, "data": b"1"}),
        ("post", f"{base}/json", {"no_such_option": True}),
    ]
    for verb, url, options in asked:
        try:
            await session.request(verb, url, **options)
        except (aiohttp.ClientError, TypeError, ValueError) as error:
            found.append((type(error), str(error)))
    return found


class RealServer:
    """The same answers, on loopback; keeps the bodies that came."""

    def __init__(self) -> None:
        self.forms: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/form":
            self.forms.append(dict(await request.post()))
            return web.Response()
        status, headers, body = ANSWERS[request.path]
        return web.Response(status=status, headers=headers, body=body)


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, RealServer]]:
    real, app = RealServer(), web.Application()
    app.router.add_route("*", "/{path:.*}", real.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", real
    await runner.cleanup()


def played() -> Outside:
    outside = Outside()

    def answer(request: Any) -> Answer:
        path = "/" + request.url.partition("//")[2].partition("/")[2].partition("?")[0]
        status, headers, body = ANSWERS[path]
        return Answer(status=status, headers=headers, body=body)

    outside.answer = answer
    return outside


# case: H11
@pytest.mark.parametrize(
    "asking",
    [verbs, kinds, reasons, head, read_as_json, raised, streamed, at_once, wrong],
    ids=lambda one: one.__name__,
)
async def test_each_way_to_ask_is_answered_alike(asking: Asking, server: tuple[str, RealServer]) -> None:
    base, _ = server
    async with aiohttp.ClientSession() as session:
        real = await asking(session, base)
    assert await asking(played(), base) == real


async def generated() -> AsyncIterator[bytes]:
    yield b"a"
    yield b"b"


def forms() -> list[Any]:
    several = aiohttp.FormData({"order": "A-1"})
    several.add_field("order", "A-2")
    file = aiohttp.FormData({"order": "A-1"})
    file.add_field("label", io.BytesIO(b"%PDF"), filename="label.pdf", content_type="application/pdf")
    parts = aiohttp.MultipartWriter("form-data")
    parts.append("A-1").set_content_disposition("form-data", name="order")
    return [
        {"order": "A-1"}, "text", b"bytes", aiohttp.FormData({"order": "A-1"}), several, file, parts,
        io.BytesIO(b"read"), generated(), [("order", "A-1")],
    ]  # fmt: skip


# case: H11
async def test_bodies_of_every_kind_are_shown_as_what_was_sent() -> None:
    outside = Outside()
    for data in forms():
        await outside.post("https://shop.example", data=data)
    label = {"filename": "label.pdf", "content_type": "application/pdf", "content": b"%PDF"}
    assert [one.body for one in outside.requests] == [
        {"order": "A-1"}, "text", b"bytes", {"order": "A-1"}, {"order": ["A-1", "A-2"]},
        {"order": "A-1", "label": label}, {"order": "A-1"}, b"read", b"ab", {"order": "A-1"},
    ]  # fmt: skip
    with pytest.raises(TypeError):
        await outside.post("https://shop.example", data=3)


# case: H11
async def test_headers_may_be_given_in_every_way() -> None:
    outside = Outside()
    given = [("Idempotency-Key", "1")]
    for headers in (given, dict(given), CIMultiDict(given)):
        await outside.get("https://shop.example", headers=headers)
    assert [one.idempotency_key for one in outside.requests] == ["1", "1", "1"]


@handles("fulfilment.requested", name="kit:form")
async def sends_a_form(event: Event, ctx: Context) -> None:
    async def one(part: str) -> None:
        form = aiohttp.FormData({"order": event.order_id or ""})
        form.add_field("label", io.BytesIO(b"%PDF"), filename="label.pdf")
        headers = {"Idempotency-Key": ctx.idempotency_key + part}
        async with ctx.http.post(f"https://shop.example/{part}", data=form, headers=headers) as answer:
            answer.raise_for_status()

    async with asyncio.TaskGroup() as group:
        for part in ("parcel", "invoice"):
            group.create_task(one(part))


# case: H11
def test_a_form_with_a_random_boundary_is_the_same_on_every_attempt() -> None:
    assert_idempotent(sends_a_form)


# case: H11
@pytest.mark.parametrize("part", ["ws_connect", "close", "cookie_jar"])
def test_what_is_not_played_says_so(workbench: Workbench, part: str) -> None:
    @handles("fulfilment.requested", name="kit:more")
    async def more(event: Event, ctx: Context) -> None:
        getattr(ctx.http, part)

    ran = workbench.run(more, workbench.event("fulfilment.requested"))
    assert (ran.status, ran.code) == ("dead", "not_played")
    assert f"does not play ClientSession.{part}: request, get, " in (ran.reason or "")


async def test_what_is_not_there_at_all_is_said_as_python_does() -> None:
    outside = Outside()
    for thing in (outside, await outside.get("https://shop.example")):
        with pytest.raises(AttributeError, match="object has no attribute 'pots'"):
            _ = thing.pots
    answer = await outside.get("https://shop.example")
    with pytest.raises(AttributeError, match=r"does not play ClientResponse\.links: use status"):
        _ = answer.links
