"""What nobody has proved fills no disk: its bytes are bounded, and each application has a room of its own."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import threading
from pathlib import Path

import aiohttp
import orjson
import pytest

from consumer.app import App
from consumer.receive import unproved
from consumer.receive.decide import CUT_FROM, REFUSAL_HEADERS_MAX_BYTES, REFUSAL_MAX_BYTES
from consumer.receive.unproved import BURST_MINUTES, LARGE_BYTES, Unproved
from consumer.receive.web import Limits
from consumer.settings import Role, load_settings
from consumer.wire import squeezed, unpack_delivery
from tests.receive.rig import RecordingBroker, Rig, embedded, running
from tests.support.desk import Desk
from tests.support.ports import eventually

MIB = 1024 * 1024
JSON = {"Content-Type": "application/json"}


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


def stuffed(value: str = "x" * 512) -> dict[str, str]:
    return {f"webhook-x-{number}": value for number in range(24)}


async def test_headers_fill_no_disk(tmp_path: Path, logs: io.StringIO) -> None:
    # case: I22
    log, limits = tmp_path / "log.db", Limits(unproved_bytes_per_minute=MIB // 8)
    async with embedded(tmp_path) as broker, running(broker, logs, limits) as rig:
        bodies = (b'{"id":"evt_%d"}' % number for number in range(700))
        replies = [await rig.send(body, path="/webhooks/hints", headers=stuffed()) for body in bodies]
    assert {reply.status for reply in replies} == {200, 503}
    assert log.stat().st_size <= 1.2 * MIB // 8 * BURST_MINUTES


async def test_a_refusal_keeps_fewer_headers(rig: Rig) -> None:
    # case: I10, I22
    assert (await rig.send(b"no json", path="/webhooks/hints", headers=stuffed("y" * 100))).status == 400
    [record] = await rig.records("deliveries")
    assert len(record.headers["http"]) <= REFUSAL_HEADERS_MAX_BYTES
    assert "webhook-x-0" in unpack_delivery(record.key, record.value, record.headers).headers


async def test_a_large_body_is_packed_beside_the_loop(
    recording: RecordingBroker, logs: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: I22
    at_it, go_on = threading.Event(), threading.Event()

    def slowly(value: bytes) -> tuple[bytes, dict[str, bytes]]:
        if len(value) > LARGE_BYTES:
            at_it.set()
            assert go_on.wait(5), "the loop stood still"
        return squeezed(value)

    monkeypatch.setattr("consumer.receive.web.squeezed", slowly)
    async with running(recording, logs) as rig:
        large = asyncio.create_task(rig.send(hint(1, 500_000), path="/webhooks/hints"))
        await eventually(at_it.is_set)
        assert (await rig.send(hint(2), path="/webhooks/hints")).status == 200
        go_on.set()
        assert (await large).status == 200


async def test_what_has_no_room_is_not_packed(
    recording: RecordingBroker, logs: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: I22
    packed: list[bytes] = []

    def noted(value: bytes) -> tuple[bytes, dict[str, bytes]]:
        packed.append(value)
        return squeezed(value)

    monkeypatch.setattr("consumer.receive.web.squeezed", noted)
    async with running(recording, logs, Limits(unproved_bytes_per_minute=MIB // 8)) as rig:
        replies = [await rig.send(hint(number, 100_000), path="/webhooks/hints") for number in range(10)]
    taken = sum(reply.status == 200 for reply in replies)
    assert 0 < taken < 10
    assert len(packed) == taken


def test_what_packing_saves_is_room_again() -> None:
    # case: I12, I22
    room = Unproved(MIB, lambda: 0.0)
    for _ in range(100):  # zeros, say
        assert room.take("shop", MIB)
        assert room.settle("shop", MIB, 1000)
    assert room.share("shop") == 100 * 1000 / (MIB * BURST_MINUTES)
    assert room.take("club", 100 * MIB), "more than a share, and perhaps small when it is packed"
    assert not room.take("club", MIB)
    assert not room.settle("club", 100 * MIB, 50 * MIB)
    assert room.share("club") == 0


async def test_what_packs_well_is_stored_as_few_bytes(rig: Rig) -> None:
    # case: I12
    body = orjson.dumps({"id": "evt_1", "pad": "".join(f"{n:x}" + "0" * 100 for n in range(9000))})
    packed = gzip.compress(body)
    assert (await rig.send(packed, path="/webhooks/hints", headers={"Content-Encoding": "gzip"})).status == 200
    [record] = await rig.records("deliveries")
    assert len(record.value) < 3 * len(packed) + 4096
    assert unpack_delivery(record.key, record.value, record.headers).raw == body


def test_the_room_comes_back_with_time_and_large_bodies_leave_some() -> None:
    # case: I22
    now = 0.0
    room = Unproved(MIB, lambda: now)
    large = sum(room.take("shop", LARGE_BYTES + 1) for _ in range(200))
    assert large == int(MIB * BURST_MINUTES / 4) // (LARGE_BYTES + 1)
    assert room.take("shop", 2000)
    while room.take("shop", 2000):
        pass
    assert room.take("club", 2000)
    now = 60.0
    assert sum(room.take("shop", 2000) for _ in range(1000)) in range(520, 527)


async def test_what_goes_into_the_log_is_counted_and_much_of_an_hours_room_is_said(
    recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I22, O2
    async with running(recording, logs, Limits(unproved_bytes_per_minute=MIB // 8)) as rig:
        told = rig.receiver.stored_lately.told
        for minute in range(45):  # some 96 KiB a minute, of 128
            rig.clock.advance(60)
            for number in range(10):
                await rig.send(hint(10 * minute + number, 19_000), path="/webhooks/hints")
            await rig.signed()
            assert (told() is not None) == (sizes(recording) > 30 * MIB // 8)
        assert orjson.loads(told() or "") == {"hints": sizes(recording)}
        labels = {"application": "hints"}
        assert rig.metrics.registry.get_sample_value("consumer_receive_unproved_bytes_total", labels) == sizes(
            recording
        )
        rig.clock.advance(3600)
        assert told() is None


def sizes(recording: RecordingBroker) -> int:
    return sum(message.size_bytes for topic, message in recording.published if topic.endswith("deliveries"))


# case: O2
async def test_status_says_that_the_log_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unproved, "MUCH", 1e-9)
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_PORT": "0",
        "CONSUMER_INTERNAL_PORT": "0",
        "CONSUMER_LINGER_S": "0",
        "SVC_BASE_URL": "http://127.0.0.1:9",
        "SVC_APP_ID": "svc_app_x",
        "SVC_APP_SECRET": "svc_sk_live_x",
    }
    await asyncio.to_thread(Desk(environ).call, "db", "upgrade")
    async with App(load_settings(environ, Role.SERVE)) as app, aiohttp.ClientSession() as http:
        await app.receive()
        await app._heartbeat.beat()
        assert "unproved_fills" not in await _found(environ)
        async with http.post(f"{app.public_url}/webhooks/default", data=hint(1), headers=JSON) as answer:
            assert answer.status == 200
        await app._heartbeat.beat()
        assert "went into the log within an hour" in (await _found(environ))["unproved_fills"]


async def _found(environ: dict[str, str]) -> dict[str, str]:
    done = await asyncio.to_thread(Desk(environ).call, "status", "--json")
    return {one["code"]: one["text"] for one in orjson.loads(done.stdout)["findings"]}
