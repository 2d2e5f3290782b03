"""A log of each kind: what the contract promises on one must hold on the other."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumer.broker import Broker, EmbeddedBroker, KafkaBroker, Message, Record, Subscription, TopicConfig
from consumer.clock import Clock
from tests.support.kafka import KafkaServer


class Log:
    """One log that outlives the brokers opened on it."""

    def __init__(self, kind: str, path: Path, server: KafkaServer | None) -> None:
        self.kind = kind
        self.path = path
        self.server = server
        self.opened: list[Broker] = []

    async def open(self, clock: Clock | None = None, **options: Any) -> Broker:
        """A started broker; `options` go to its constructor."""
        broker: Broker
        if self.server is None:
            broker = EmbeddedBroker(self.path, clock=clock, heartbeat_s=0.2, session_s=2.0, **options)
        else:
            address = self.server.url.removeprefix("kafka://")
            broker = KafkaBroker([address], clock=clock, heartbeat_s=0.2, session_s=6.0, **options)
        await broker.start()
        self.opened.append(broker)
        return broker

    async def topic(self, broker: Broker, partitions: int = 4, max_record_bytes: int = 100_000) -> str:
        """A topic of this test's own."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        await broker.ensure_topics(
            [TopicConfig(name=name, partitions=partitions, retention_s=None, max_record_bytes=max_record_bytes)]
        )
        return name

    def group(self) -> str:
        """A group of this test's own."""
        return f"g-{uuid.uuid4().hex[:12]}"

    @asynccontextmanager
    async def blocked(self) -> AsyncIterator[None]:
        """While inside, the log takes no record: another process holds the file, or the server does not answer."""
        if self.server is not None:
            self.server.pause()
            try:
                yield
            finally:
                self.server.resume()
            return
        other = sqlite3.connect(self.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")
            other.close()

    async def close(self) -> None:
        """Stop whatever was opened."""
        await asyncio.gather(*(broker.stop(5.0) for broker in self.opened))


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow])])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Log]:
    """A log of each kind."""
    server = request.getfixturevalue("kafka_broker") if request.param == "kafka" else None
    found = Log(request.param, tmp_path / "log.db", server)
    yield found
    await found.close()


@pytest.fixture
async def broker(log: Log) -> Broker:
    """A started broker on the log."""
    return await log.open()


def message(value: str, key: str = "order:1", **headers: bytes) -> Message:
    """A message of text."""
    return Message(key=key.encode(), value=value.encode(), headers=headers)


async def read(member: Subscription, count: int, within_s: float = 15.0) -> list[Record]:
    """Poll until `count` records came; AssertionError when they do not come in time."""
    found: list[Record] = []
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while len(found) < count:
        assert loop.time() < deadline, f"{len(found)} of {count} records in {within_s} s"
        found.extend(await member.poll(500, 0.5))
    return found


async def read_all(member: Subscription, quiet_s: float = 1.0) -> list[Record]:
    """Poll until nothing comes for `quiet_s`; for tests that expect nothing more."""
    found: list[Record] = []
    while records := await member.poll(500, quiet_s):
        found.extend(records)
    return found


def values(records: list[Record]) -> list[str]:
    """The values as text."""
    return [record.value.decode() for record in records]
