"""Publish and poll rates of one broker, by hand: `python -m tests.bench.broker [embedded:PATH | kafka://HOST:PORT]`.

Without an address: the embedded log in a temporary folder. It makes a topic of its own and leaves it behind.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import uuid

import uvloop

from consumer.broker import Broker, Message, TopicConfig, open_broker

VALUE = b'{"id":"evt_0123456789","type":"order.paid","data":{"object":{"order_id":"o-1"}}}' * 5
HEADERS = {
    "application": b"default",
    "event_id": b"evt_0123456789",
    "type": b"order.paid",
    "trust": b"signed",
    "source": b"webhook",
    "received_at": b"2026-01-01T00:00:00.000000+00:00",
    "delivery_id": b"d" * 32,
}


def _messages(count: int) -> list[Message]:
    return [Message(key=b"order:%d" % (number % 5_000), value=VALUE, headers=HEADERS) for number in range(count)]


def _told(what: str, count: int, began_s: float, cpu_s: float) -> None:
    took_s, used_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    print(f"{what:24} {count / took_s:10,.0f} records/s {used_s / count * 1e6:8.1f} µs of this process each")


async def _publish(broker: Broker, topic: str, count: int, at_once: int) -> None:
    left = iter(_messages(count))

    async def one() -> None:
        for message in left:
            await broker.publish(topic, message)

    began_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one() for _ in range(at_once)))
    _told(f"publish, {at_once} at once", count, began_s, cpu_s)


async def bench(url: str, count: int) -> None:
    """Print one line a figure."""
    broker = open_broker(url)
    await broker.start()
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    await broker.ensure_topics([TopicConfig(name=topic, partitions=8, retention_s=3600, max_record_bytes=1_000_000)])
    sizes = ((min(count, 500), 1), (count, 10), (count, 200))
    for size, at_once in sizes:
        await _publish(broker, topic, size, at_once)
    messages = _messages(count)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    await broker.publish_many(topic, messages)
    _told("publish_many", count, began_s, cpu_s)
    total = sum(size for size, _ in sizes) + count
    member = broker.subscribe([topic], "bench")
    await member.start()
    read = 0
    while read == 0:
        read = len(await member.poll(500, 1.0))
    first, began_s, cpu_s = read, time.perf_counter(), time.process_time()
    while read < total:
        read += len(await member.poll(500, 1.0))
    _told("poll, 500 at most", read - first, began_s, cpu_s)
    await broker.stop()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.broker", description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--count", type=int, default=20_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(bench(asked.url or f"embedded:{folder}/log.db", asked.count))


if __name__ == "__main__":
    main()
