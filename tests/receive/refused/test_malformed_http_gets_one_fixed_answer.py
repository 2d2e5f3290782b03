"""Bytes that are no HTTP request: one fixed 400 in our own shape, nothing of the sender's bytes in it or in the log."""

from __future__ import annotations

import asyncio
import io

import orjson
import pytest
from aiohttp import web

from consumer.receive.web import Limits
from tests.receive.rig import BODY, RecordingBroker, Rig, running

MARK = b"hush<script>"
HEAD = b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
MALFORMED = {
    "no HTTP": b"\x16\x03\x01" + MARK + b"\r\n\r\n",
    "request line": b"POST " + MARK + b"\r\n\r\n",
    "version": b"POST /" + MARK + b" HTTP/9.9\r\nHost: x\r\n\r\n",
    "address": b"POST http://[" + MARK + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "host in the address": b"POST http://xn--a/" + MARK + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "header": HEAD + MARK + b" y: z\r\n\r\n",
    "long header": HEAD + b"X-Long: " + MARK * 1000 + b"\r\n\r\n",
    "many headers": HEAD + b"".join(b"X-%d: %b\r\n" % (number, MARK) for number in range(300)) + b"\r\n",
    "length": HEAD + b"Content-Length: " + MARK + b"\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + MARK,
    "coding": HEAD + b"Transfer-Encoding: " + MARK + b"\r\n\r\n",
    "chunk size": CHUNKED + MARK + b"\r\n",
    "chunk": CHUNKED + b"5\r\n" + MARK + b"\r\n",
    "after a request": b"GET /webhooks HTTP/1.1\r\nHost: x\r\n\r\n" + MARK + b"\r\n\r\n",
}


async def whole(rig: Rig, *parts: bytes) -> bytes:
    """What comes back for these bytes until the server ends the connection; each part in a packet of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            if part is not parts[-1]:
                await in_flight(rig)
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


async def in_flight(rig: Rig) -> None:
    async with asyncio.timeout(20):
        while not rig.receiver.in_flight:  # noqa: ASYNC110 - the receiver is seen from outside
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", MALFORMED)
async def test_malformed_requests_get_one_fixed_answer(rig: Rig, logs: io.StringIO, kind: str) -> None:
    # case: I10
    answer = await whole(rig, MALFORMED[kind])
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert orjson.loads(body) == {
        "status": "refused",
        "code": "malformed",
        "message": "the request is malformed or its head is too large",
    }
    assert b"connection: close" in head.lower()
    assert b"server:" not in head.lower()
    assert rig.count("malformed", "unknown") == 1
    lines = [orjson.loads(line) for line in logs.getvalue().splitlines()]
    assert [(line["event"], line["outcome"]) for line in lines] == [("webhook_refused", "malformed")]
    assert "hush" not in answer.decode() + logs.getvalue()


async def test_chunks_that_turn_bad_on_the_way_are_refused(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I10
    async with running(recording, logs, Limits(body_timeout_s=0.2)) as rig:
        answer = await whole(rig, CHUNKED + b"5\r\n{hush\r\n", MARK + b"\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"connection: close" in head.lower()
        assert orjson.loads(body)["code"] == "broken_body"
        assert "hush" not in answer.decode() + logs.getvalue()
        assert rig.count("broken_body", "hints") == 1
        assert recording.published == []


async def test_a_lack_of_memory_is_no_fault_of_the_bytes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `ulimit -v`: who hears 400 does not send it again."""

    def none_left(connection: web.RequestHandler, data: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(web.RequestHandler, "data_received", none_left)
    answer = await whole(rig, HEAD + b"Content-Length: 2\r\n\r\n{}")
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After" in answer


async def test_no_answer_names_the_software(rig: Rig) -> None:
    for reply in (
        await rig.signed(),
        await rig.send(path="/nowhere"),
        await rig.send(method="GET"),
        await rig.send(b"{}"),
        await rig.send(BODY),
    ):
        assert "Server" not in reply.headers, reply
