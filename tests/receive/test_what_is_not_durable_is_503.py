"""What the broker did not acknowledge is 503 with `Retry-After`, within a bounded time; nothing is held on to."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path

import pytest

from consumer.errors import BrokerError, BrokerUnavailable, ConsumerError, RecordTooLarge
from consumer.receive.web import Limits
from tests.receive.rig import BODY, RecordingBroker, embedded, running


@pytest.mark.parametrize("path", ["/webhooks/sandbox", "/webhooks/hints"])
@pytest.mark.parametrize("error", [BrokerUnavailable(), BrokerError("refused"), TimeoutError()])
async def test_no_acknowledgement_is_503(
    recording: RecordingBroker, logs: io.StringIO, error: Exception, path: str
) -> None:
    # case: I2, I3
    async def fail(_: float) -> None:
        raise error

    recording.answer = fail
    async with running(recording, logs) as rig:
        reply = await rig.send(path=path)
        assert (reply.status, reply.code, reply.headers["Retry-After"]) == (503, "not_durable", "5")
        assert rig.receiver.in_flight == 0
        recording.answer = None
        assert (await rig.send(path=path)).status == 200
        assert len(recording.published) == 1
    refused = [line for line in logs.getvalue().splitlines() if "webhook_refused" in line]
    assert [re.search(r"trace_id[^0-9a-f]+[0-9a-f]{32}", line) is not None for line in refused] == [True]


async def test_a_body_that_is_not_understood_is_400_only_when_it_is_kept(
    recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I2, I10
    async def fail(_: float) -> None:
        raise BrokerUnavailable

    recording.answer = fail
    async with running(recording, logs) as rig:
        assert (await rig.send(b"no json", path="/webhooks/hints")).status == 503


async def test_the_wait_for_the_broker_has_the_configured_bound(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I2, U4
    bounds: list[float] = []

    async def slow(timeout_s: float) -> None:
        bounds.append(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.Event().wait()
        except TimeoutError as error:
            raise BrokerUnavailable("no answer in time") from error

    recording.answer = slow
    async with running(recording, logs, Limits(publish_timeout_s=0.05)) as rig:
        assert (await rig.send(path="/webhooks/hints")).status == 503
    assert bounds == [0.05]


async def test_a_stopped_embedded_broker_is_503(tmp_path: Path, logs: io.StringIO) -> None:
    # case: I2
    async with embedded(tmp_path) as broker, running(broker, logs) as rig:
        assert (await rig.signed()).status == 200
        await broker.stop()
        assert (await rig.signed()).status == 503
        await broker.start()
        assert (await rig.signed()).status == 200
        assert len(await rig.records("events")) == 2


async def test_a_record_the_topic_never_takes_is_413(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I30
    async def refuse(_: float) -> None:
        raise RecordTooLarge

    recording.answer = refuse
    async with running(recording, logs) as rig:
        assert (await rig.send(path="/webhooks/hints")).status == 413


async def test_the_refusal_names_no_cause_to_the_sender(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I25
    async def fail(_: float) -> None:
        raise ConsumerError("broker at 10.0.0.1 refused")

    recording.answer = fail
    async with running(recording, io.StringIO()) as rig:
        reply = await rig.send(BODY, path="/webhooks/hints")
        assert (reply.status, reply.code) == (503, "failed")
        assert b"10.0.0.1" not in reply.body
    logs.truncate(0)  # this accident is one, and its traceback is wanted
    logs.seek(0)
