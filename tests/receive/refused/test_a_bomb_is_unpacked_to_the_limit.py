"""A compressed body is unpacked within the limit of any body, and never beyond it."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.receive.answers import Refused
from consumer.receive.body import GROWTH_FREE_BYTES, GROWTH_MAX, decompressed
from tests.receive.rig import BODY, Rig, signature

MIB = 1024 * 1024


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


async def test_a_gzip_bomb_is_413(rig: Rig) -> None:
    # case: I12
    bomb = gzip.compress(b" " * (200 * MIB), 9)
    assert len(bomb) < MIB
    for path in ("/webhooks/hints", "/webhooks/default"):
        reply = await rig.send(bomb, path=path, headers={"Content-Encoding": "gzip"})
        assert (reply.status, reply.code) == (413, "too_large")
    assert await rig.records("deliveries") == await rig.records("events") == []


def test_a_bomb_never_takes_more_memory_than_a_body_may() -> None:
    # case: I12
    bombs = [gzip.compress(b"\0" * (200 * MIB), 9), b"".join([gzip.compress(b"\0" * MIB)] * 200)]
    for bomb in bombs:
        tracemalloc.start()
        with pytest.raises(Refused) as caught:
            decompressed(bomb, "gzip", MIB)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert caught.value.answer.status == 413
        assert peak < 6 * MIB


# case: I12, I22
@pytest.mark.parametrize("copies", [1, 20])
def test_who_sends_little_makes_little_work(copies: int) -> None:
    """A thousand bytes may be a megabyte of zeros: to unpack and to parse them takes a hundred times as long as what
    anybody sends."""
    zeros = gzip.compress(b"0" * (MIB // copies)) * copies
    assert GROWTH_MAX * len(zeros) < MIB
    with pytest.raises(Refused) as caught:
        decompressed(zeros, "gzip", MIB)
    assert caught.value.answer.status == 413
    small = b"0" * GROWTH_FREE_BYTES
    assert decompressed(gzip.compress(small), "gzip", MIB) == small


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("identity", bytes),
    ],
)
async def test_a_compressed_body_is_taken_and_its_signature_is_over_what_the_sender_wrote(
    rig: Rig, coding: str, pack: object
) -> None:
    # case: I12, I6
    packed = pack(BODY)  # type: ignore[operator]  # one of the three packers above
    reply = await rig.send(packed, headers={**signature(BODY, rig.clock), "Content-Encoding": coding})
    assert reply.status == 200
    [record] = await rig.records("events")
    assert record.value == BODY


@pytest.mark.parametrize("body", [b"not gzip", gzip.compress(BODY)[:-9], gzip.compress(BODY) + b"tail", b"\x1f\x8b"])
async def test_a_broken_compressed_body_is_400(rig: Rig, body: bytes) -> None:
    reply = await rig.send(body, headers={**signature(BODY, rig.clock), "Content-Encoding": "gzip"})
    assert (reply.status, reply.code) == (400, "broken_body")


async def test_an_unknown_coding_is_400(rig: Rig) -> None:
    reply = await rig.send(headers={**signature(BODY, rig.clock), "Content-Encoding": "br"})
    assert (reply.status, reply.code) == (400, "unsupported_content_encoding")


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "identity", "br", ""]))
def test_no_bytes_break_the_unpacking(body: bytes, coding: str) -> None:
    try:
        size = len(decompressed(body, coding, 1000))
    except Refused:
        size = 0
    assert size <= 1000
