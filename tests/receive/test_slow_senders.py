"""Who sends slowly holds what has arrived, and gives way: a webhook that comes whole is always taken."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest

from consumer.receive.admission import USUAL_BYTES, Admission
from consumer.receive.answers import Refused
from consumer.receive.web import Limits
from tests.receive.rig import BODY, RecordingBroker, Rig, running
from tests.support.ports import eventually

MIB = 1024 * 1024


@asynccontextmanager
async def slow(rig: Rig, number: int, *, announced: int, sent: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many requests that announce much and have sent a part."""
    head = b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    pairs = [await asyncio.open_connection("127.0.0.1", rig.port) for _ in range(number)]
    try:
        for _, writer in pairs:
            writer.write(head % announced + b" " * sent)
        yield [reader for reader, _ in pairs]
    finally:
        for _, writer in pairs:
            writer.close()


@contextmanager
def entered(admission: Admission, size: int) -> Iterator[None]:
    """A body that is here, while it is worked on."""
    admission.enter(size)
    try:
        yield
    finally:
        admission.leave(size)


async def test_announced_megabytes_refuse_nobody(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22
    async with running(recording, logs) as rig, slow(rig, 200, announced=MIB, sent=1):
        await eventually(lambda: rig.receiver.in_flight == 200)
        replies = [await rig.send(path="/webhooks/hints") for _ in range(50)]
        assert {reply.status for reply in replies} == {200}
        assert len(recording.published) == 50


async def test_slow_bodies_give_way_when_all_bytes_are_held(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22
    limits = Limits(max_in_flight_bytes=MIB)
    async with running(recording, logs, limits) as rig, slow(rig, 15, announced=MIB, sent=64 * 1024) as readers:
        await eventually(lambda: rig.metrics.registry.get_sample_value("consumer_receive_held_bytes") == 15 * 65536)
        padded = BODY + b" " * (128 * 1024)
        assert (await rig.send(padded, path="/webhooks/hints")).status == 200
        assert (await readers[0].readline()).startswith(b"HTTP/1.1 503 ")
        assert (rig.metrics.registry.get_sample_value("consumer_receive_displaced") or 0) >= 1


async def test_more_slow_senders_than_places_displace_each_other(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22
    limits = Limits(max_in_flight=10)
    async with running(recording, logs, limits) as rig, slow(rig, 40, announced=100, sent=1):
        await eventually(lambda: rig.metrics.registry.get_sample_value("consumer_receive_displaced") == 30)
        assert (await rig.send(path="/webhooks/hints")).status == 200
        assert await rig.receiver.has_room()


async def test_a_body_slower_than_the_least_rate_is_cut_off(
    recording: RecordingBroker, logs: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: I22
    monkeypatch.setattr("consumer.receive.admission.GRACE_S", 0.1)
    limits = Limits(body_timeout_s=60, min_bytes_per_s=1000)
    async with (
        running(recording, logs, limits) as rig,
        slow(rig, 1, announced=1000, sent=50) as [reader],
        asyncio.timeout(5),
    ):
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")


async def test_a_connection_that_brings_no_head_is_closed(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22
    async with running(recording, logs, Limits(body_timeout_s=0.2)) as rig:
        pairs = [await asyncio.open_connection("127.0.0.1", rig.port) for _ in range(3)]
        for sent, (_, writer) in zip(
            (b"", b"POST /webhooks/hints HT", b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\n"), pairs, strict=True
        ):
            writer.write(sent)
        async with asyncio.timeout(10):
            assert [await reader.read() for reader, _ in pairs] == [b"", b"", b""]
        for _, writer in pairs:
            writer.close()


async def test_a_connection_that_brought_a_request_stays_open(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22
    request = b"GET /webhooks/hints HTTP/1.1\r\nHost: x\r\n\r\n"
    async with running(recording, logs, Limits(body_timeout_s=0.2)) as rig, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(request)
        assert b" 405 " in await reader.readline()
        fresh, other = await asyncio.open_connection("127.0.0.1", rig.port)
        assert await fresh.read() == b"", "that one was cut off by now, as this one would have been"
        writer.write(request)
        assert b" 405 " in (await reader.readuntil(b" 405 "))
        writer.close()
        other.close()


async def test_readiness_tells_when_there_is_no_room(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I22, O8
    came, release = recording.hold()
    async with running(recording, logs, Limits(max_in_flight=1)) as rig:
        assert await rig.receiver.has_room()
        request = asyncio.create_task(rig.send(path="/webhooks/hints"))
        await asyncio.wait_for(came.wait(), 5)
        assert not await rig.receiver.has_room()
        release.set()
        assert (await request).status == 200


async def test_readiness_tells_when_the_bytes_in_hand_leave_no_room(
    recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I22, O8
    came, release = recording.hold()
    async with running(recording, logs, Limits(max_in_flight_bytes=len(BODY))) as rig:
        request = asyncio.create_task(rig.send(path="/webhooks/hints"))
        await asyncio.wait_for(came.wait(), 5)
        assert (await rig.send(path="/webhooks/hints")).status == 503
        assert not await rig.receiver.has_room()
        release.set()
        assert (await request).status == 200
        assert await rig.receiver.has_room()


async def test_what_can_give_way_fills_nothing() -> None:
    # case: I22, O8
    admission = Admission(max_requests=10, max_bytes=100)
    with admission.arriving_body("slow", 10, 0) as arrival:
        admission.grow(arrival, 100)
        assert not admission.is_full
        with entered(admission, 99):
            assert not admission.is_full, "what arrives gave way, and a byte is left"
            with entered(admission, 1):
                assert admission.is_full
                with pytest.raises(Refused), entered(admission, 1):
                    pass


async def test_a_large_room_is_full_when_a_usual_webhook_finds_none() -> None:
    # case: I22, O8
    admission = Admission(max_requests=10, max_bytes=MIB)
    with entered(admission, MIB - USUAL_BYTES):
        assert not admission.is_full
        with entered(admission, 1):
            assert admission.is_full


async def test_the_address_that_holds_most_gives_way_first() -> None:
    # case: I22
    admission = Admission(max_requests=10, max_bytes=100)
    with (
        admission.arriving_body("greedy", 10, 0) as first,
        admission.arriving_body("greedy", 10, 0) as second,
        admission.arriving_body("modest", 10, 0) as third,
    ):
        for arrival, size in ((first, 40), (second, 30), (third, 20)):
            admission.grow(arrival, size)
        with entered(admission, 50):
            assert [one.gave_way for one in (first, second, third)] == [True, False, False]
            with pytest.raises(Refused):
                admission.grow(second, 60)
        admission.grow(third, 20)
    assert (admission.held_bytes, admission.arriving) == (0, 0)


async def test_of_many_addresses_the_oldest_body_gives_way_and_a_whole_webhook_waits_for_none() -> None:
    # case: I22, O8
    admission = Admission(max_requests=50, max_bytes=5_000)
    with ExitStack() as held:
        bodies = [held.enter_context(admission.arriving_body(f"10.0.0.{n}", 10, 0)) for n in range(50)]
        for body in bodies:
            admission.grow(body, 100)
        assert not admission.is_full, "what is slow is no room lost"
        newest = held.enter_context(admission.arriving_body("service", 10, 0))
        admission.grow(newest, 100)
        assert [body.gave_way for body in bodies] == [True] + [False] * 49
        with entered(admission, 1_000):
            assert [body.gave_way for body in bodies] == [True] * 11 + [False] * 39
        assert not newest.gave_way
    assert (admission.held_bytes, admission.arriving) == (0, 0)


async def test_a_body_that_is_whole_is_no_longer_cut_off() -> None:
    # case: I22
    admission = Admission(max_requests=10, max_bytes=1000)
    with admission.arriving_body("10.0.0.1", 10, 0) as packed:
        async with packed.limit():
            admission.grow(packed, 900)
        with entered(admission, 200):  # while the other one is unpacked
            assert (packed.gave_way, admission.displaced) == (True, 1)


async def test_one_that_gave_way_displaces_nobody_with_its_next_part() -> None:
    # case: I22
    admission = Admission(max_requests=10, max_bytes=1000)
    with (
        admission.arriving_body("10.0.0.1", 10, 0) as gone,
        admission.arriving_body("10.0.0.2", 10, 0) as other,
    ):
        admission.grow(gone, 700)
        admission.grow(other, 100)
        with entered(admission, 900):
            with pytest.raises(Refused, match="gave way"):
                admission.grow(gone, 700)
            assert (other.gave_way, admission.displaced) == (False, 1)


async def test_the_last_to_arrive_that_gave_way_is_told_that_it_is_busy() -> None:
    # case: I22
    admission = Admission(max_requests=10, max_bytes=1000)
    with admission.arriving_body("10.0.0.1", 10, 0) as gone:
        admission.grow(gone, 700)
        with entered(admission, 900), pytest.raises(Refused, match="gave way"):
            admission.grow(gone, 700)
