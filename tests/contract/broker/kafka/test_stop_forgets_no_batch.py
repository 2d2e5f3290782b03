"""Stop forgets no batch, whichever turn of the event loop it comes in: also between the end of a round, when a lane
waits for nothing any more, and its flight, when the batch is handed over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from consumer.broker import Message
from consumer.broker.kafka.connection import KafkaConnection
from consumer.broker.kafka.lanes import TopicLanes
from consumer.broker.kafka.publisher import KafkaPublisher

TURNS = 12


class Producer:
    """aiokafka's, as far as the publisher asks it: every batch is acknowledged two turns later."""

    def __init__(self) -> None:
        self.client = SimpleNamespace(cluster=SimpleNamespace(partitions_for_topic=lambda _: {0}))

    def create_batch(self) -> Any:
        """A batch that takes everything."""
        return SimpleNamespace(append=lambda **_: True)

    async def send_batch(self, *_: Any, **__: Any) -> asyncio.Future[None]:
        """The batch is on its way."""
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        acknowledged: asyncio.Future[None] = loop.create_future()
        loop.call_soon(acknowledged.set_result, None)
        return acknowledged

    async def stop(self) -> None:
        """Nothing is left to do."""


@pytest.mark.parametrize("turns", range(TURNS))
async def test_stop_forgets_no_batch(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: I4
    connection = KafkaConnection(servers=("127.0.0.1:1",), client_id="test")
    publisher = KafkaPublisher(connection, max_pending=100, max_pending_bytes=10_000)

    async def connect(_: KafkaPublisher) -> Producer:
        return Producer()

    monkeypatch.setattr(KafkaPublisher, "_connect", connect)
    await publisher.start(1)
    topic = TopicLanes("t", 3, 1_000, 1_000_000)
    sending = [publisher.send(topic, Message(key=b"%d" % key, value=b"x", headers={}), 5) for key in range(9)]
    waiting = [asyncio.create_task(one) for one in sending]
    for _ in range(turns + 1):
        await asyncio.sleep(0)
    async with asyncio.timeout(3):
        await publisher.stop(5)
        assert await asyncio.gather(*waiting, return_exceptions=True) == [None] * 9
