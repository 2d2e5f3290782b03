"""Who waits for records looks at the file in a thread: the loop hears of changes, and of little else."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from consumer.broker import EmbeddedBroker, TopicConfig
from consumer.broker.embedded import file as file_module
from consumer.broker.embedded import schema
from consumer.broker.embedded.file import LogFile
from consumer.clock import DrivenClock
from tests.contract.broker.conftest import message

TOPIC = TopicConfig(name="t", partitions=1, retention_s=3600, max_record_bytes=100_000)


@pytest.mark.slow
async def test_nothing_is_read_for_nothing_and_another_process_is_heard_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    real = LogFile.read

    async def counted(self: LogFile, *given: Any) -> Any:
        nonlocal reads
        reads += 1
        return await real(self, *given)

    here, elsewhere = EmbeddedBroker(tmp_path / "log.db"), EmbeddedBroker(tmp_path / "log.db")
    for broker in (here, elsewhere):
        await broker.start()
        await broker.ensure_topics([TOPIC])
    subscription = here.subscribe(["t"], "g")
    await subscription.start()
    assert not await subscription.poll(10, 1.0)
    monkeypatch.setattr(LogFile, "read", counted)
    assert not await subscription.poll(10, 1.5)
    assert reads <= 8

    waiting = asyncio.create_task(subscription.poll(10, 30.0))
    await asyncio.sleep(0)
    await elsewhere.publish("t", message("1"))
    async with asyncio.timeout(5):
        assert len(await waiting) == 1
    for broker in (here, elsewhere):
        await broker.stop()


async def test_a_poll_that_nothing_comes_to_reads_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = 0
    real = LogFile.read

    async def counted(self: LogFile, run: Any, *given: Any) -> Any:
        nonlocal fetches
        fetches += getattr(run, "func", None) is schema.read_records
        return await real(self, run, *given)

    broker = EmbeddedBroker(tmp_path / "log.db", heartbeat_s=60.0)
    await broker.start()
    await broker.ensure_topics([TOPIC])
    subscription = broker.subscribe(["t"], "g")
    await subscription.start()
    assert not await subscription.poll(10, 1.0)
    monkeypatch.setattr(LogFile, "read", counted)
    assert not await subscription.poll(10, 0.3)
    assert fetches == 1
    await broker.stop()


@pytest.mark.slow
async def test_a_file_that_nothing_comes_to_is_looked_at_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    real = schema.data_version

    def counted(connection: sqlite3.Connection) -> int:
        nonlocal looks
        looks += 1
        return real(connection)

    clock = DrivenClock()
    log = LogFile(tmp_path / "log.db", clock=clock)
    await log.open()
    monkeypatch.setattr(file_module, "data_version", counted)
    version = await log.changed(-1)
    clock.advance(2.0)
    looks = 0
    assert await log.changed(version) == version
    quiet = looks
    log.stir()
    looks = 0
    assert await log.changed(version) == version
    assert quiet < looks
    await log.close(5.0)
