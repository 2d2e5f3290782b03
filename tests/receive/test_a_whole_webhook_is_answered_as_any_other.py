"""A webhook that came whole is answered from where it was read: as aiohttp's own way answers it, and in order."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.receive.connection import WebhookServer
from consumer.receive.web import Limits, Receiver
from consumer.telemetry.port import Server
from tests.receive.rig import BODY, RecordingBroker, Rig, receiving, running
from tests.support.ports import eventually

DATE = re.compile(rb"Date: [^\r]+\r\n")
TURNS = 40
"""Of the event loop: after so many there is nothing left to do for what is here."""


def request(body: bytes = BODY, path: str = "/webhooks/hints", **headers: str) -> bytes:
    """A POST as it goes over the wire."""
    sent = {"Host": "x", "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in sent.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


CHUNKED = b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
REQUESTS = {
    "a hint": request(),
    "another hint": request(BODY.replace(b"evt_1", b"evt_2")),
    "no JSON": request(b"{"),
    "nothing": request(b""),
    "too large": request(b'{"id":"evt_1","pad":"' + b"x" * 3000 + b'"}'),
    "no signature": request(path="/webhooks/default"),
    "another type": request(Content_Type="text/plain"),
    "packed, and not": request(Content_Encoding="gzip"),
    "an unknown coding": request(Content_Encoding="compress"),
    "another address": request(path="/webhooks/nobody"),
    "an escaped address": request(path="/webhooks/h%69nts"),
    "the last one": request(Connection="close"),
    "an upgrade": request(Connection="Upgrade", Upgrade="websocket"),
    "chunks": CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "of HTTP/1.0": request().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "of HTTP/1.0, that keeps": request(Connection="keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "no POST": b"GET /webhooks/hints HTTP/1.1\r\nHost: x\r\n\r\n",
    "a length beyond counting": request(Content_Length=str(2**64 - 1)),
    "a host that is none": request(path="http://xn--a/webhooks/hints"),
    "chunks, and more headers": CHUNKED + b"%x\r\n%b\r\n0\r\nContent-Encoding: gzip\r\n\r\n" % (len(BODY), BODY),
    "no HTTP": b"\x16\x03\x01\r\n\r\n",
}


class Line(asyncio.Transport):
    """A connection's other end: what was written to it, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


Answered = tuple[list[bytes], list[tuple[str, bytes, bytes | None]], bool, int]
"""The answers without their dates, what was published, whether the connection was closed, and what is in flight."""


async def answered(
    pieces: Sequence[bytes], pauses: Sequence[int], holds: int, *, begins: int, plainly: bool
) -> Answered:
    """What a connection answers to these bytes, what was published, and whether it was closed. Between them so many
    turns of the loop pass, and `begins` before the first; the log acknowledges after `holds`. `plainly`: all of it goes
    aiohttp's way."""
    recording = RecordingBroker()

    async def late(_: float) -> None:
        await turns(holds)

    recording.answer = late
    receiver, _, _ = receiving(recording, Limits(max_body_bytes=2048))
    server = server_of(receiver, plainly=plainly)
    connection, line = server(), Line()
    connection.connection_made(line)
    await turns(begins)
    for piece, pause in zip(pieces, pauses, strict=True):
        if not line.closed:
            connection.data_received(piece)
        await turns(pause)
    await turns(TURNS * max(1, len(pieces)))
    connection.connection_lost(None)
    await turns(2)
    published = [(topic, one.value, one.headers.get("event_id")) for topic, one in recording.published]
    written = [DATE.sub(b"", part) for part in line.written]
    return written, published, line.closed, receiver.in_flight


def server_of(receiver: Receiver, *, plainly: bool = False, **options: float) -> Server:
    """The server of `receive_runner`, or aiohttp's own."""
    more = {"head_timeout_s": 5, "auto_decompress": False, "lingering_time": 1.0, **options}
    if plainly:
        return Server(receiver.handle, receiver.refuse, **more)
    return WebhookServer(receiver.takes, receiver.handle, receiver.refuse, **more)


async def turns(number: int) -> None:
    """So many turns of the loop."""
    for _ in range(number):
        await asyncio.sleep(0)


HINTS = st.sampled_from(["a hint", "another hint"])


@settings(max_examples=400)
@given(
    names=st.lists(HINTS | st.sampled_from(sorted(REQUESTS)), min_size=1, max_size=4),
    cuts=st.none() | st.lists(st.integers(1, 900), max_size=4),
    pauses=st.lists(st.sampled_from([0, 0, 1, 2, 5, 12]), min_size=5, max_size=5),
    holds=st.integers(0, 6),
    begins=st.integers(0, 2),
)
def test_any_requests_cut_anywhere_are_answered_as_aiohttps_way_answers_them(
    names: list[str], cuts: list[int] | None, pauses: list[int], holds: int, begins: int
) -> None:
    # case: I1, I10, I11
    pieces = [REQUESTS[name] for name in names]
    if cuts is not None:
        stream, ends = b"".join(pieces), sorted({0, *cuts})
        pieces = [part for at, end in zip(ends, [*ends[1:], None], strict=True) if (part := stream[at:end])]
    ours, plain = (
        asyncio.run(answered(pieces, pauses[: len(pieces)], holds, begins=begins, plainly=plainly))
        for plainly in (False, True)
    )
    assert ours == plain


BEGINS = pytest.mark.parametrize("begins", [0, 1, 2])
"""Turns of the loop between a connection and its first bytes: most come with it, before aiohttp's task has begun."""


@BEGINS
async def test_the_first_webhook_of_a_connection_is_answered_so_too(
    begins: int, recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I1
    receiver, _, _ = receiving(recording, Limits())
    server, line = server_of(receiver), Line()
    connection = server()
    connection.connection_made(line)
    await turns(begins)
    for _ in range(3):
        connection.data_received(request())
        await turns(TURNS)
    assert [one[:15] for one in line.written] == [b"HTTP/1.1 200 OK"] * 3
    assert server.requests_count == 0, "aiohttp's way"


MANY = 16_385
"""Chunks of one body: more than aiohttp takes before it stops to parse."""


@pytest.mark.parametrize(
    ("answers", "last", "pieces"),
    [
        (41, b"200", [request()[:50], request()[50:], request() * 40]),
        (1, b"413", [CHUNKED + b"1\r\n \r\n" * MANY + b"0\r\n\r\n"]),
    ],
    ids=["forty behind one in pieces", "chunks without end"],
)
async def test_what_makes_the_parser_stop_is_gone_on_with(
    answers: int, last: bytes, pieces: list[bytes], logs: io.StringIO
) -> None:
    # case: I22
    told = [await answered(pieces, [TURNS] * len(pieces), 0, begins=2, plainly=plainly) for plainly in (False, True)]
    assert told[0] == told[1]
    written, *_ = told[0]
    assert len(written) == answers
    assert written[-1].startswith(b"HTTP/1.1 " + last)


@pytest.mark.parametrize("at_once", [True, False], ids=["in one piece", "one after another"])
async def test_what_stands_behind_chunks_is_no_header_of_the_next_request(at_once: bool, logs: io.StringIO) -> None:
    """Where a proxy shares its connections, the next request is somebody else's."""
    # case: I10
    first = REQUESTS["chunks, and more headers"]
    pieces = [first + request()] if at_once else [first, request()]
    written, published, closed, _ = await answered(pieces, [TURNS] * len(pieces), 0, begins=2, plainly=False)
    assert [part[:15] for part in written] == [b"HTTP/1.1 200 OK"]
    assert b"\r\nConnection: close\r\n" in written[0]
    assert (closed, len(published)) == (True, 1)


EXPECTING = b"POST %b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize(
    ("status", "head"),
    [
        (b"404", EXPECTING % (b"/webhooks/nobody", 50)),
        (b"413", EXPECTING % (b"/webhooks/hints", 5000)),
        (b"405", EXPECTING.replace(b"POST", b"PUT") % (b"/webhooks/hints", 50)),
        (b"404", EXPECTING.replace(b"Expect: 100-continue", b"X: y") % (b"/webhooks/nobody", 50)),
    ],
    ids=["nobody's", "too large", "no POST", "half a body"],
)
async def test_a_body_that_nobody_waits_for_ends_its_connection_and_says_so(
    status: bytes, head: bytes, logs: io.StringIO
) -> None:
    """A proxy that kept it would put the next sender's webhook where that body is expected, and get no answer."""
    # case: I10, I11
    written, *_ = await answered([head], [TURNS], 0, begins=2, plainly=False)
    assert [part[9:12] for part in written] == [status]
    assert b"\r\nConnection: close\r\n" in written[0]


async def test_what_comes_behind_no_request_is_not_answered_in_its_place(logs: io.StringIO) -> None:
    # case: I10
    pieces = [request(path="http://xn--a/webhooks/hints") + request()]
    written, published, closed, _ = await answered(pieces, [TURNS], 0, begins=2, plainly=False)
    assert [part[:24] for part in written] == [b"HTTP/1.1 400 Bad Request"]
    assert (closed, published) == (True, [])


@asynccontextmanager
async def connected(rig: Rig) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def status(reader: asyncio.StreamReader) -> int:
    """Of the next answer."""
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        return int(head.split(b" ")[1])


async def test_a_sender_that_leaves_leaves_nothing_behind(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22
    asked, release = recording.hold()
    async with running(recording, logs) as rig:
        before = asyncio.all_tasks()
        async with connected(rig) as (_, writer):
            writer.write(request())
            await asyncio.wait_for(asked.wait(), 5)
        assert rig.runner.server is not None
        [served] = rig.runner.server.connections
        await eventually(lambda: served.transport is None, what="the server has heard of it")
        release.set()
        await eventually(lambda: asyncio.all_tasks() <= before)
        assert (rig.receiver.in_flight, len(recording.published)) == (0, 1)


async def test_what_breaks_the_parser_leaves_nothing_behind(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I10, I22
    async with running(recording, logs) as rig:
        assert rig.runner.server is not None
        for _ in range(20):
            async with connected(rig) as (reader, writer):
                writer.write(b"POST http://a@[::1]:80@/ HTTP/1.1\r\nHost: x\r\n\r\n")
                assert await status(reader) == 400
                assert await asyncio.wait_for(reader.read(), 5) == b""
        await eventually(lambda: rig.runner.server is not None and not rig.runner.server.connections)


async def test_a_connection_takes_any_number(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22
    async with running(recording, logs) as rig, connected(rig) as (reader, writer):
        for _ in range(100):
            writer.write(request())
            assert await status(reader) == 200
    assert len(recording.published) == 100


class Timed:
    """The loop, at a time of the test's own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self._loop = asyncio.get_running_loop()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> asyncio.Handle:
        self.due.append((when, call))
        return asyncio.Handle(call, (), self._loop)

    def pass_to(self, now: float) -> None:
        """What is due until then is called."""
        self.now = now
        for one in [one for one in self.due if one[0] <= now]:
            self.due.remove(one)
            one[1]()

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)


async def test_an_idle_connection_ends_its_time_after_its_last_answer(
    recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I22
    receiver, _, _ = receiving(recording, Limits())
    connection, line, loop = server_of(receiver, keepalive_timeout=75)(), Line(), Timed()
    connection.connection_made(line)
    assert connection._keepalive_handle is not None
    connection._keepalive_handle.cancel()  # it goes by the running loop's time; from here on all goes by the test's
    connection._keepalive_handle = None
    connection._loop = loop  # type: ignore[assignment]  # aiohttp takes no other
    for answers, now in enumerate((0, 60, 120, 180), start=1):
        loop.pass_to(now)
        await turns(2)
        connection.data_received(request())
        await turns(TURNS)
        assert (len(line.written), line.closed) == (answers, False)
    loop.pass_to(254)
    assert not line.closed
    loop.pass_to(255)
    assert line.closed


async def test_who_shuts_down_waits_for_the_answer(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I4
    asked, release = recording.hold()
    async with running(recording, logs) as rig, connected(rig) as (reader, writer):
        writer.write(request())
        await asyncio.wait_for(asked.wait(), 5)
        ending = asyncio.create_task(rig.runner.cleanup())
        await turns(5)
        assert not ending.done()
        release.set()
        assert await status(reader) == 200
        assert await asyncio.wait_for(reader.read(), 5) == b""
        await asyncio.wait_for(ending, 5)


@BEGINS
async def test_who_shuts_down_waits_no_longer_than_it_says(
    begins: int, recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I4
    recording.hold()
    receiver, _, _ = receiving(recording, Limits())
    server, line = server_of(receiver), Line()
    connection = server()
    connection.connection_made(line)
    await turns(begins)
    connection.data_received(request())
    await turns(2)
    assert receiver.in_flight == 1
    await server.shutdown(0.05)
    await turns(3)
    assert (receiver.in_flight, line.closed) == (0, True)


async def test_a_task_of_aiohttp_that_is_ended_meanwhile_breaks_no_answer(
    recording: RecordingBroker, logs: io.StringIO
) -> None:
    """As the end of a loop does. An error that nobody fetches would fail this test."""
    # case: I4
    _, release = recording.hold()
    receiver, _, _ = receiving(recording, Limits())
    connection, line = server_of(receiver)(), Line()
    connection.connection_made(line)
    await turns(2)
    connection.data_received(request())
    await turns(2)
    assert connection._task_handler is not None
    connection._task_handler.cancel()
    connection.data_received(request())
    release.set()
    await turns(TURNS)
    assert ([one[:15] for one in line.written], line.closed) == ([b"HTTP/1.1 200 OK"], True)


@BEGINS
async def test_what_came_as_the_process_stopped_is_told_so(
    begins: int, recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I4, O8
    receiver, _, _ = receiving(recording, Limits())
    connection, line = server_of(receiver)(), Line()
    connection.connection_made(line)
    await turns(begins)
    connection.data_received(request())
    assert await receiver.stop(1) == 0
    await turns(TURNS)
    assert line.written[0].startswith(b"HTTP/1.1 503")
    assert b'"stopping"' in line.written[0]
    assert (line.closed, recording.published) == (True, [])


@pytest.mark.parametrize("closes", ["closing", "stopped"])
async def test_a_connection_ends_with_its_answer_when_the_process_is_about_to(
    closes: str, recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I4, O8
    asked, release = recording.hold()
    async with running(recording, logs) as rig, connected(rig) as (reader, writer):
        writer.write(request())
        await asyncio.wait_for(asked.wait(), 5)
        if closes == "closing":
            rig.receiver.begin_closing()
        else:
            assert await rig.receiver.stop(0.0) == 1
        release.set()
        assert await status(reader) == 200
        assert await asyncio.wait_for(reader.read(), 5) == b""
