"""A compressed body of very many members is refused in linear time, and never in the loop's."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import threading
import time

import orjson
import pytest

from consumer.receive.answers import Refused
from consumer.receive.body import AT_ONCE_BYTES, MEMBERS_MAX, decompressed
from consumer.receive.web import Limits
from tests.receive.rig import BODY, RecordingBroker, running
from tests.support.ports import eventually

MIB = 1024 * 1024
MEMBER = gzip.compress(b"x")


@pytest.mark.parametrize("size", [MIB, 16 * MIB])
def test_members_are_undone_in_linear_time(size: int) -> None:
    # case: I12
    body = MEMBER * (size // len(MEMBER))
    began = time.thread_time()
    with pytest.raises(Refused, match="too many members"):
        decompressed(body, "gzip", 16 * MIB)
    assert time.thread_time() - began < 0.1


def test_a_few_members_are_one_body() -> None:
    # case: I12
    parts = [os.urandom(50).hex().encode() * 50 for _ in range(MEMBERS_MAX)]
    assert decompressed(b"".join(gzip.compress(part) for part in parts), "gzip", MIB) == b"".join(parts)


def large_as_sent() -> bytes:
    packed = gzip.compress(orjson.dumps({"id": "evt_1", "pad": os.urandom(200_000).hex()}))
    assert len(packed) > AT_ONCE_BYTES
    return packed


def large_unpacked() -> bytes:
    packed = gzip.compress(orjson.dumps({"id": "evt_1", "pad": "".join(f"{n:x}" + "0" * 150 for n in range(14_000))}))
    assert len(packed) < AT_ONCE_BYTES
    return packed


@pytest.mark.parametrize("packed", [large_as_sent(), large_unpacked()], ids=["as sent", "unpacked"])
async def test_a_large_body_is_unpacked_beside_the_loop(
    packed: bytes, recording: RecordingBroker, logs: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: I12, I22
    at_it, go_on = threading.Event(), threading.Event()

    def slowly(body: bytes, coding: str, max_bytes: int) -> bytes:
        at_it.set()
        assert go_on.wait(5), "the loop stood still"
        return decompressed(body, coding, max_bytes)

    monkeypatch.setattr("consumer.receive.body.decompressed", slowly)
    async with running(recording, logs, Limits(max_body_bytes=4 * MIB)) as rig:
        large = asyncio.create_task(rig.send(packed, path="/webhooks/hints", headers={"Content-Encoding": "gzip"}))
        await eventually(at_it.is_set)
        assert (await rig.send(BODY, path="/webhooks/hints")).status == 200
        go_on.set()
        assert (await large).status == 200
