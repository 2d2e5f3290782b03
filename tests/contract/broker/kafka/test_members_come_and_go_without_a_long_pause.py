"""Members join and leave a group under load, 2 to 8 to 2: of a hundred records 99 wait for two seconds at most."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from consumer.broker import KafkaBroker, Message, TopicConfig
from consumer.broker.base import Subscription, next_offsets
from tests.support.ports import eventually

FEW, MANY, PARTITIONS = 2, 8, 16
EVERY_S = 0.01
APART_S = 0.5
AFTERWARDS = 200
AT_MOST_S = 2.0


@dataclass
class Group:
    """Its members, and when each record was published and first handed out."""

    broker: KafkaBroker
    topic: str
    members: list[tuple[Subscription, asyncio.Task[None]]] = field(default_factory=list)
    published: dict[bytes, float] = field(default_factory=dict)
    taken: dict[bytes, float] = field(default_factory=dict)

    async def join(self) -> None:
        """One member more; returns when it takes records."""
        subscription = self.broker.subscribe((self.topic,), "pause")
        await subscription.start()
        self.members.append((subscription, asyncio.create_task(self._read(subscription))))

    async def leave(self) -> None:
        """The newest member stops cleanly."""
        subscription, reading = self.members.pop()
        await subscription.stop()
        reading.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await reading

    async def _read(self, subscription: Subscription) -> None:
        while True:
            records = await subscription.poll(100, 0.5)
            for record in records:
                self.taken.setdefault(record.value, time.monotonic())
            if records:
                await subscription.commit(next_offsets(records))

    async def publish(self, over: asyncio.Event) -> None:
        """A record every `EVERY_S` seconds, whether or not the one before was acknowledged; until `over`."""
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                group.create_task(self._publish(str(number).encode()))
                await asyncio.sleep(EVERY_S)
                if over.is_set():
                    return

    async def _publish(self, value: bytes) -> None:
        await self.broker.publish(self.topic, Message(key=value, value=value), timeout_s=30)
        self.published[value] = time.monotonic()

    def has_taken(self, values: set[bytes]) -> bool:
        """Whether each of them was handed out."""
        return values <= self.taken.keys()

    def row(self, name: str, since: float) -> tuple[float, str]:
        """The 99th percentile of what was published since then, and a line that tells more."""
        waits = sorted(self.taken[one] - at for one, at in self.published.items() if at >= since and one in self.taken)
        p99 = waits[len(waits) * 99 // 100]
        middle, longest = waits[len(waits) // 2], waits[-1]
        return p99, f"{name}: {len(waits)} records, p50 {middle:.3f} s, p99 {p99:.2f} s, longest {longest:.2f} s"


@asynccontextmanager
async def _group(kafka_url: str) -> AsyncIterator[Group]:
    broker = KafkaBroker([kafka_url.removeprefix("kafka://")])
    await broker.start()
    group = Group(broker, f"pause-{uuid.uuid4().hex[:8]}")
    try:
        await broker.ensure_topics(
            [TopicConfig(name=group.topic, partitions=PARTITIONS, retention_s=None, max_record_bytes=100_000)]
        )
        yield group
    finally:
        for _ in list(group.members):
            await group.leave()
        await broker.stop()


# case: I22
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(180)
async def test_two_to_eight_to_two(kafka_url: str) -> None:
    async with _group(kafka_url) as group:
        for _ in range(FEW):
            await group.join()
        over = asyncio.Event()
        publishing = asyncio.create_task(group.publish(over))
        await eventually(lambda: len(group.taken) > 100, within_s=20)
        rows: list[tuple[float, str]] = []
        for name, step, count in (("2 to 8", group.join, MANY - FEW), ("8 to 2", group.leave, MANY - FEW)):
            since = time.monotonic()
            for _ in range(count):
                await step()
                await asyncio.sleep(APART_S)
            enough = len(group.published) + AFTERWARDS
            await eventually(lambda: len(group.published) >= enough, within_s=30, what="more was published")  # noqa: B023 - awaited here
            await eventually(partial(group.has_taken, set(group.published)), within_s=30, what="all is taken")
            rows.append(group.row(name, since))
        over.set()
        await publishing
        print("\n" + "\n".join(line for _, line in rows))
        assert max(p99 for p99, _ in rows) <= AT_MOST_S, rows
