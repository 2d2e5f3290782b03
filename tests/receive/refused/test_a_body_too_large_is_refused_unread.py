"""A body over the limit is refused before it is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from consumer.receive.web import Limits
from tests.receive.rig import RecordingBroker, Rig, running

TWO_MIB = b'{"id":"evt_1","pad":"' + b"x" * (2 * 1024 * 1024) + b'"}'


async def test_two_mib_are_413(rig: Rig) -> None:
    # case: I11, I30
    reply = await rig.signed(TWO_MIB)
    assert (reply.status, reply.code) == (413, "too_large")
    assert rig.count("too_large") == 1
    assert await rig.records("deliveries") == await rig.records("events") == []


async def test_the_declared_length_is_enough_to_refuse(rig: Rig) -> None:
    # case: I11
    head = b"POST /webhooks/default HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(head)
    async with asyncio.timeout(5):
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_nobody_is_invited_to_send_too_much(rig: Rig) -> None:
    # case: I11
    head = b"POST /webhooks HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n"
    assert (await rig.raw(head)).startswith(b"HTTP/1.1 413 ")
    fits = b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(fits)
    async with asyncio.timeout(5):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_a_body_without_a_length_is_counted_while_it_comes(rig: Rig) -> None:
    # case: I11
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 65_536
            yield b"x" * 65_536

    async with rig.http.post(f"http://127.0.0.1:{rig.port}/webhooks/hints", data=endless()) as answer:
        assert answer.status == 413


async def test_a_body_of_exactly_the_limit_is_taken(recording: RecordingBroker, logs: object) -> None:
    # case: I11
    limits = Limits(max_body_bytes=2048)
    async with running(recording, logs, limits) as rig:  # type: ignore[arg-type]  # the fixture's stream
        fits = b'{"id":"evt_1","pad":"' + b"x" * (2048 - 23) + b'"}'
        assert len(fits) == 2048
        assert (await rig.send(fits, path="/webhooks/hints")).status == 200
        assert (await rig.send(fits + b" ", path="/webhooks/hints")).status == 413
