"""Lanes: what waits for one partition of a Kafka topic, and what becomes of it; and in which partition a key lies. No
I/O."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from consumer.broker.base import Message
from consumer.broker.kafka.topics import MAX_BATCH_BYTES, RECORD_OVERHEAD_BYTES
from consumer.errors import BrokerError, BrokerUnavailable, RecordTooLarge

PURGE_FROM = 256
BATCH_RECORDS = 5_000
IN_BATCH_OVERHEAD_BYTES = 64
GROWS_EVERY_S, GROWS_AT_LEAST_EVERY_S = 60.0, 3_600.0
# A record carries no time of its publisher's: the broker stamps it (or, on a topic that keeps publishers' times, keeps
# it without one). A clock ahead by an hour would have its records refused (message.timestamp.after.max.ms), a clock
# behind by the retention would have them deleted at once (case I1).
NO_TIMESTAMP = -1
MASK, MULTIPLIER = 0xFFFFFFFF, 0x5BD1E995


class Item:
    """One message and who waits for it. `call`: what tells those that were given together from all others."""

    __slots__ = ("call", "done", "headers", "key", "sent", "size_bytes", "value")

    def __init__(
        self, message: Message, size_bytes: int, done: asyncio.Future[None], call: object | None = None
    ) -> None:
        self.call = call
        self.key = message.key
        self.value = message.value
        self.headers: list[tuple[str, bytes]] = list(message.headers.items())
        self.size_bytes = size_bytes
        self.done = done
        self.sent = False


class Lane:
    """What waits for one partition of `home`."""

    __slots__ = ("given_up", "home", "number", "pending", "topic")

    def __init__(self, home: TopicLanes, number: int) -> None:
        self.home = home
        self.topic = home.name
        self.number = number
        self.pending: deque[Item] = deque()
        self.given_up = 0


class TopicLanes:
    """A topic as the publisher needs it: one lane a partition, and the largest record. `is_bound_known`: whether the
    topic's own limit could be read, so that it took `max_record_bytes` then. `batch_bytes`: how large its batches are
    now, `whole_bytes` by its limit as it was read; `resized_s`: since when they are so large, `grows_every_s`: how long
    they stay so at least, `has_grown`: whether they have grown since one was refused."""

    def __init__(
        self, name: str, partitions: int, max_record_bytes: int, max_message_bytes: int, *, is_bound_known: bool = False
    ) -> None:
        self.name = name
        self.max_record_bytes = max_record_bytes
        self.is_bound_known = is_bound_known
        self.whole_bytes = self.batch_bytes = min(MAX_BATCH_BYTES, max_message_bytes - RECORD_OVERHEAD_BYTES)
        self.resized_s = 0.0
        self.grows_every_s = GROWS_EVERY_S
        self.has_grown = False
        self.lanes = [Lane(self, number) for number in range(partitions)]


def next_batch(lane: Lane, producer: Any) -> tuple[Any, list[Item]]:
    """As many waiting messages as fit in one batch, without those nobody waits for any more."""
    builder = producer.create_batch()
    items: list[Item] = []
    pending = lane.pending
    size = 0
    while pending and len(items) < BATCH_RECORDS:
        item = pending[0]
        if item.done.done():
            pending.popleft()
            continue
        if items and size + item.size_bytes + IN_BATCH_OVERHEAD_BYTES > lane.home.batch_bytes:
            break
        try:
            fits = builder.append(timestamp=NO_TIMESTAMP, key=item.key, value=item.value, headers=item.headers)
        except Exception as error:  # noqa: BLE001 - one message of a wrong type must not fail its neighbours
            pending.popleft()
            refuse(lane, [item], BrokerError(f"the message cannot be encoded ({type(error).__name__})"))
            continue
        if fits is None:
            break
        pending.popleft()
        item.sent = True
        size += item.size_bytes + IN_BATCH_OVERHEAD_BYTES
        items.append(item)
    lane.given_up = 0 if not pending else lane.given_up
    return builder, items


def send_in_smaller_batches(lane: Lane, items: Sequence[Item], now_s: float) -> None:
    """These were too large together: they wait again, before what came later, and the topic's batches are half as large
    from now on. So they come to be as small as the topic takes, and a record that it does not take is alone. Where they
    had just grown, that is tried more rarely: each refusal costs a producer."""
    home = lane.home
    if home.has_grown:
        home.grows_every_s, home.has_grown = min(home.grows_every_s * 2, GROWS_AT_LEAST_EVERY_S), False
    home.batch_bytes, home.resized_s = min(home.batch_bytes, _bytes(items) // 2), now_s
    waiting = [item for item in items if not item.done.done()]
    for item in waiting:
        item.sent = False
    lane.pending.extendleft(reversed(waiting))


def send_in_larger_batches(lane: Lane, items: Sequence[Item], now_s: float) -> None:
    """These were taken: while the topic's batches are smaller than they may be, one that was full doubles them, once in
    a minute. The limit may have been raised; if it was not, that costs one refusal, and the next try comes later."""
    home = lane.home
    if home.batch_bytes >= home.whole_bytes or now_s - home.resized_s < home.grows_every_s:
        return
    if _bytes(items) * 2 > home.batch_bytes:
        if home.has_grown:
            home.grows_every_s = GROWS_EVERY_S
        home.has_grown = True
        home.batch_bytes, home.resized_s = min(home.batch_bytes * 2, home.whole_bytes), now_s


def _bytes(items: Sequence[Item]) -> int:
    return sum(item.size_bytes + IN_BATCH_OVERHEAD_BYTES for item in items)


def give_up(lane: Lane, item: Item) -> None:
    """Empty a message that was not sent and nobody waits for, and count it; when most are such, drop them, so that a
    silent broker costs no memory."""
    item.value, item.headers = b"", []
    lane.given_up += 1
    if lane.given_up >= PURGE_FROM and lane.given_up * 2 >= len(lane.pending):
        purge(lane)


def purge(lane: Lane) -> None:
    """Drop what nobody waits for any more."""
    lane.pending = deque(item for item in lane.pending if not item.done.done())
    lane.given_up = 0


def settle(items: Iterable[Item], error: BrokerError | None) -> None:
    """Tell everybody who still waits: durable, or why not."""
    for item in items:
        if item.done.done():
            continue
        if error is None:
            item.done.set_result(None)
        else:  # one exception object each: a shared one would collect everybody's traceback
            item.done.set_exception(type(error)(error.message, **error.fields))


def refuse(lane: Lane, items: Sequence[Item], error: BrokerError) -> None:
    """These failed so. What was given together with one of them, has its key and waits behind it fails with it: it must
    not overtake it."""
    settle(items, error)
    behind = {(item.call, item.key) for item in items if item.call is not None}
    if behind:
        settle([item for item in lane.pending if (item.call, item.key) in behind], error)


def too_large(topic: TopicLanes, size_bytes: int) -> RecordTooLarge:
    """A record of so many bytes is larger than the topic took when it was looked at."""
    return RecordTooLarge(topic=topic.name, bytes=size_bytes, max_bytes=topic.max_record_bytes)


def expire(done: asyncio.Future[None]) -> None:
    """The caller's time is over."""
    if not done.done():
        done.set_exception(BrokerUnavailable("the broker did not acknowledge in time"))


def expire_all(waiting: Sequence[asyncio.Future[None]]) -> None:
    """The same for a chunk."""
    for done in waiting:
        expire(done)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition number Kafka's default partitioner gives a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """The hash with which Kafka's own clients choose a partition (org.apache.kafka.common.utils.Utils.murmur2)."""
    length = len(data)
    words = length >> 2
    h = 0x9747B28C ^ length
    for k in struct.unpack_from(f"<{words}I", data):
        k = (k * MULTIPLIER) & MASK
        h = (h * MULTIPLIER ^ (k ^ (k >> 24)) * MULTIPLIER) & MASK
    rest = data[words << 2 :]
    if rest:
        h = ((h ^ int.from_bytes(rest, "little")) * MULTIPLIER) & MASK
    h = ((h ^ (h >> 13)) * MULTIPLIER) & MASK
    return h ^ (h >> 15)
