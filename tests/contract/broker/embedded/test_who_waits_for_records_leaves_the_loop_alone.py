"""Who waits for records looks at the file in a thread: the loop hears of changes, and of little else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from consumer.broker import EmbeddedBroker, TopicConfig
from consumer.broker.embedded.file import LogFile
from tests.contract.broker.conftest import message

TOPIC = TopicConfig(name="t", partitions=1, retention_s=3600, max_record_bytes=100_000)


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
