"""Anybody can make a million refusals: each kind is said once, then at growing intervals, and its end."""

from __future__ import annotations

import io
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from consumer.app.root import App
from consumer.receive.web import QUIET_S, REASONS_MAX, Limits, Receiver
from consumer.settings import Role, load_settings
from tests.receive.rig import RecordingBroker, Rig, running


def told(rig: Rig) -> list[tuple[str, str, int]]:
    lines = [orjson.loads(line) for line in rig.logs.getvalue().splitlines()]
    return [(line["event"], line["outcome"], line["times"]) for line in lines if "times" in line]


async def test_a_flood_of_one_kind(rig: Rig) -> None:
    # case: I10, O1
    for _ in range(40):
        assert (await rig.send(b"no json", path="/webhooks/hints")).status == 400
        rig.clock.advance(10)
        rig.receiver.look()
    assert (await rig.signed(age_s=9999)).status == 401
    said = [("webhook_refused", "not_understood", times) for times in (1, 7, 19)]
    assert told(rig) == [*said, ("webhook_refused", "bad_signature", 1)], "another kind is said at once"
    assert rig.count("not_understood", "hints") == 40, "each is counted"
    rig.clock.advance(QUIET_S)
    rig.receiver.look()
    assert told(rig)[4:] == [
        ("webhook_refused_over", "not_understood", 40),
        ("webhook_refused_over", "bad_signature", 1),
    ]


async def test_more_kinds_than_are_told_apart(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I10, O1
    numbers = iter(range(10**6))

    async def fail(_: float) -> None:
        raise TimeoutError(f"attempt {next(numbers)}")

    recording.answer = fail
    async with running(recording, logs, Limits()) as rig:
        for _ in range(REASONS_MAX + 20):
            assert (await rig.send(path="/webhooks/hints")).status == 503
        assert len(told(rig)) == REASONS_MAX + 1


async def test_what_nobody_foresaw_is_told_with_its_trace_and_not_for_each_request(
    recording: RecordingBroker,
) -> None:
    # case: I2, O1
    async def fail(_: float) -> None:
        raise ZeroDivisionError

    recording.answer = fail
    with capture_logs() as lines:
        async with running(recording, io.StringIO()) as rig:
            for _ in range(10):
                assert (await rig.send(path="/webhooks/hints")).status == 503
            rig.clock.advance(QUIET_S)
            rig.receiver.look()
    assert [(line["event"], line["times"]) for line in lines] == [("receive_failed", 1), ("receive_failed_over", 10)]
    assert isinstance(lines[0]["exc_info"], ZeroDivisionError)


async def test_each_heartbeat_of_serve_looks_whether_there_are_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: O1
    looks: list[Receiver] = []
    monkeypatch.setattr(Receiver, "look", lambda receiver: looks.append(receiver))
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_AUTHENTICITY": "none",
        "CONSUMER_PORT": "0",
        "CONSUMER_INTERNAL_PORT": "0",
        "CONSUMER_LINGER_S": "0",
    }
    async with App(load_settings(environ, Role.SERVE)) as app:
        await app.receive()
        await app._heartbeat.beat()
    assert looks
