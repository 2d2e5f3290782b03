"""What nobody has proved fills no disk: its bytes are bounded, and each application has a room of its own."""

from __future__ import annotations

import gzip
import io
import os

import orjson

from consumer.receive.decide import CUT_FROM, REFUSAL_MAX_BYTES
from consumer.receive.unproved import BURST_MINUTES, LARGE_BYTES, Unproved
from consumer.receive.web import Limits
from consumer.wire import unpack_delivery
from tests.receive.rig import RecordingBroker, Rig, running

MIB = 1024 * 1024


def hint(number: int, size: int = 0) -> bytes:
    return orjson.dumps({"id": f"evt_{number}", "type": "order.paid", "pad": os.urandom(size // 2).hex()})


async def test_a_flood_of_one_application_leaves_the_others_their_room(
    recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I22, G8
    async with running(recording, logs, Limits(unproved_bytes_per_minute=MIB // 8)) as rig:
        replies = [await rig.send(hint(number, 20_000), path="/webhooks/hints") for number in range(100)]
        assert {reply.status for reply in replies} == {200, 503}
        refused = [reply for reply in replies if reply.status == 503]
        assert {(reply.code, reply.headers["Retry-After"]) for reply in refused} == {("unproved_full", "60")}
        stored = sum(len(message.value) for _, message in recording.published)
        assert stored <= MIB // 8 * BURST_MINUTES
        assert (await rig.send(orjson.dumps({"envelope": {"n": "evt_1"}}), path="/webhooks/odd")).status == 200
        assert (await rig.signed()).status == 200
        share = rig.metrics.registry.get_sample_value("consumer_receive_unproved_share", {"application": "hints"})
        assert share is not None
        assert share > 0.9


async def test_a_refused_body_is_kept_as_far_as_diagnosis_needs_it(rig: Rig) -> None:
    # case: I10
    body = b"no json " * 100_000
    assert (await rig.send(body, path="/webhooks/hints")).status == 400
    [record] = await rig.records("deliveries")
    delivery = unpack_delivery(record.key, record.value, record.headers)
    assert delivery.raw == body[:REFUSAL_MAX_BYTES]
    assert delivery.headers[CUT_FROM] == str(len(body))


async def test_refusals_are_answered_400_when_there_is_no_room_to_keep_them(
    recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I10, I22
    async with running(recording, logs, Limits(unproved_bytes_per_minute=MIB // 8)) as rig:
        replies = [await rig.send(os.urandom(5000), path="/webhooks/hints") for _ in range(60)]
        assert {reply.status for reply in replies} == {400}
        stored = sum(len(message.value) for _, message in recording.published)
        assert stored <= MIB // 8
        assert (await rig.send(hint(1), path="/webhooks/hints")).status == 200


async def test_compressed_zeros_are_stored_as_few_bytes(rig: Rig) -> None:
    # case: I12
    body = orjson.dumps({"id": "evt_1", "pad": "0" * (MIB - 100)})
    packed = gzip.compress(body)
    assert (await rig.send(packed, path="/webhooks/hints", headers={"Content-Encoding": "gzip"})).status == 200
    [record] = await rig.records("deliveries")
    assert len(record.value) < 3 * len(packed) + 4096
    assert unpack_delivery(record.key, record.value, record.headers).raw == body


def test_the_room_comes_back_with_time_and_large_bodies_leave_some() -> None:
    # case: I22
    now = 0.0
    unproved = Unproved(MIB, lambda: now)
    large = sum(unproved.take("shop", LARGE_BYTES + 1) for _ in range(200))
    assert large == int(MIB * BURST_MINUTES / 4) // (LARGE_BYTES + 1)
    assert unproved.take("shop", 2000)
    while unproved.take("shop", 2000):
        pass
    assert unproved.take("club", 2000)
    now = 60.0
    assert sum(unproved.take("shop", 2000) for _ in range(1000)) in range(520, 527)
