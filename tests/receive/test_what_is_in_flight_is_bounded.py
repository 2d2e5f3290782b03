"""With a slow broker the requests and bytes in flight stay bounded; what is beyond is 503 at once."""

from __future__ import annotations

import asyncio
import io
import socket

import pytest

from consumer.receive.web import Limits
from consumer.telemetry import port
from tests.receive.rig import BODY, RecordingBroker, Rig, running
from tests.support.ports import eventually


async def burst(rig: Rig, number: int, release: asyncio.Event) -> list[int]:
    requests = [asyncio.create_task(rig.send(path="/webhooks/hints")) for _ in range(number)]
    async with asyncio.timeout(20):
        while sum(request.done() for request in requests) + rig.receiver.in_flight < number:
            await asyncio.wait(requests, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
    release.set()
    return sorted(reply.status for reply in await asyncio.gather(*requests))


async def test_requests_in_flight_are_bounded(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22
    release = asyncio.Event()

    async def slow(_: float) -> None:
        await release.wait()

    recording.answer = slow
    async with running(recording, logs, Limits(max_in_flight=5)) as rig:
        assert await burst(rig, 40, release) == [200] * 5 + [503] * 35
        assert (rig.count("busy", "hints"), len(recording.published)) == (35, 5)
        assert (await rig.send(path="/webhooks/hints")).status == 200
    assert logs.getvalue().count('"busy"') <= 3


async def test_bytes_in_flight_are_bounded(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22
    release = asyncio.Event()

    async def slow(_: float) -> None:
        await release.wait()

    recording.answer = slow
    async with running(recording, logs, Limits(max_in_flight_bytes=3 * len(BODY))) as rig:
        assert await burst(rig, 10, release) == [200] * 3 + [503] * 7


async def test_a_slow_sender_is_cut_off(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22
    async with running(recording, logs, Limits(body_timeout_s=0.05)) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        assert rig.receiver.in_flight == 0


async def test_a_sender_that_does_not_read_is_cut_off(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22
    async with running(recording, logs) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, limit=1024)
        request = b"GET /webhooks HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # a sender that never reads
        try:
            async with asyncio.timeout(30):
                while True:
                    writer.write(request)
                    await writer.drain()
        except ConnectionError:
            pass
        writer.close()
        assert (await rig.send(path="/webhooks/hints")).status == 200


async def test_what_is_sent_behind_a_request_is_not_read_before_its_turn(
    recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I22
    asked, release = recording.hold()
    async with running(recording, logs) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        post = b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
        writer.write(post)
        await asyncio.wait_for(asked.wait(), 5)
        assert rig.runner.server is not None
        [served] = rig.runner.server.connections
        transport = served.transport
        assert transport is not None
        writer.write(post)
        await eventually(lambda: len(served._messages) == 1)
        assert transport.is_reading()
        writer.write(post)
        await eventually(lambda: not transport.is_reading())
        assert len(served._messages) == 2
        for _ in range(50):
            writer.write(post)
        release.set()
        async with asyncio.timeout(20):
            for _ in range(53):
                assert (await reader.readuntil(b'"accepted"}')).startswith(b"HTTP/1.1 200 ")
        assert transport.is_reading()
        writer.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux counts how long nothing is read")
async def test_who_reads_no_answer_is_let_go(
    recording: RecordingBroker, logs: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed at our end, the connection stayed for as long as the other end did."""
    # case: I22
    monkeypatch.setattr(port, "UNREAD_WITHIN_S", 0.2)
    async with running(recording, logs) as rig:
        server = rig.runner.server
        assert server is not None
        with socket.create_connection(("127.0.0.1", rig.port)):
            await eventually(lambda: server.connections)
            [served] = server.connections
            assert isinstance(served.transport, asyncio.Transport)
            served.transport.write(bytes(32 * 1024 * 1024))
            served.force_close()
            await eventually(lambda: not server.connections, what="it is let go")
