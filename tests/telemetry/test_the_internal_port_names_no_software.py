"""The internal port names no software, and gives nobody's bytes back."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import aiohttp
import orjson
import pytest
from aiohttp import web

from consumer.clock import DrivenClock
from consumer.telemetry import port as port_
from consumer.telemetry.internal import Readiness, internal_app
from consumer.telemetry.metrics import Metrics
from consumer.telemetry.port import InternalRunner

ZEROS = gzip.compress(bytes(64 * 1024 * 1024))
"""A sixteenth of a megabyte, to be unpacked to a thousand times that."""


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = internal_app(metrics=Metrics(), readiness=Readiness(DrivenClock()))

    async def broken(_: web.Request) -> web.Response:
        raise RuntimeError("hush")

    app.router.add_get("/broken", broken)
    runner = InternalRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield int(runner.addresses[0][1])
    await runner.cleanup()


async def sent(port: int, data: bytes) -> tuple[bytes, bytes]:
    """Head and body of what comes back until the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(20):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return head, body


async def test_no_answer_names_the_software(port: int) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        for path, status in (("/healthz", 200), ("/readyz", 503), ("/metrics", 200), ("/nowhere", 404)):
            async with http.get(path) as answer:
                assert (path, answer.status, "Server" in answer.headers) == (path, status, False)
        async with http.post("/healthz") as answer:
            assert (answer.status, "Server" in answer.headers) == (405, False)


@pytest.mark.parametrize(
    "data",
    [
        b"hush\r\n\r\n",
        b"GET /hush HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nhu sh: 1\r\n\r\n",
        b"GET http://xn--a/hush HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["request line", "version", "header", "host in the address"],
)
async def test_malformed_requests_get_one_fixed_answer(port: int, data: bytes) -> None:
    head, body = await sent(port, data)
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"server:" not in head.lower()
    message = "the request is malformed or its head is too large"
    assert orjson.loads(body) == {"error": {"code": "malformed", "message": message}}


async def test_what_stands_behind_chunks_is_no_header_of_the_next_request(port: int) -> None:
    """Where a proxy shares its connections, the next request is somebody else's."""
    chunks = b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: x\r\n\r\n"
    head, body = await sent(port, chunks + b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" in head.lower()
    assert set(orjson.loads(body)) == {"status", "loop_lag_s"}


async def test_a_failing_page_says_nothing_of_itself(port: int) -> None:
    head, body = await sent(port, b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"server:" not in head.lower()
    assert orjson.loads(body)["error"]["code"] == "internal_error"
    assert b"hush" not in body


@pytest.mark.parametrize("path", ["/healthz", "/nowhere"])
async def test_no_body_is_unpacked(port: int, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    def broken(*_: object) -> object:
        raise AssertionError("unpacked")

    monkeypatch.setattr(zlib, "decompressobj", broken)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        for coding in ("gzip", "deflate", "br", "zstd"):
            async with http.get(path, data=ZEROS, headers={"Content-Encoding": coding}) as answer:
                assert answer.status == (200 if path == "/healthz" else 404)
        async with http.get("/healthz") as answer:
            assert (await answer.json())["status"] == "ok"


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nHost:"])
async def test_who_asks_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    """A hundred of them took all file descriptors, and every webhook was refused, for as long as they stayed."""
    monkeypatch.setattr(port_, "HEAD_WITHIN_S", 0.05)
    runner = InternalRunner(internal_app(metrics=Metrics(), readiness=Readiness(DrivenClock())))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    assert await sent(int(runner.addresses[0][1]), begun) == (b"", b"")
    await runner.cleanup()
