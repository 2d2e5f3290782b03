"""KafkaPublisher: a supervised idempotent producer, and one lane a partition that batches what waits.

A lane has at most one batch on its way, and everything that arrives meanwhile shares the next one. So a lone sender
never waits for a linger, and many at once share requests. A message costs a future and a timer, no task.

aiokafka's idempotent producer retries for ever and never fails while a broker is silent (#1101), and after one failed
batch its sequence numbers have a hole (#1017). Hence: callers have their own time limit, what waits is bounded, and
a producer whose batch failed or got stuck is replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from consumer.broker.base import Message
from consumer.broker.kafka_connection import KafkaConnection, end
from consumer.broker.kafka_lanes import (
    Item,
    Lane,
    TopicLanes,
    expire,
    expire_all,
    give_up,
    next_batch,
    purge,
    settle,
    size_of,
)
from consumer.broker.kafka_topics import MAX_BATCH_BYTES
from consumer.broker.murmur2 import partition_of
from consumer.errors import BrokerError, BrokerUnavailable, RecordTooLarge

LOG = logging.getLogger(__name__)

STUCK_AFTER_S = 30.0
REQUEST_TIMEOUT_S = 10.0
RENEW_WAIT_S = 0.5
RENEW_WAIT_CEILING_S = 5.0
END_WITHIN_S = 2.0


class _Live:
    """A started producer; `lost` is done when it must not be used any more."""

    def __init__(self, producer: Any, lost: asyncio.Future[None]) -> None:
        self.producer = producer
        self.lost = lost


class KafkaPublisher:
    """Publishes. `max_pending` messages and `max_pending_bytes` bound what waits; beyond, publishing fails at once."""

    def __init__(self, connection: KafkaConnection, *, max_pending: int, max_pending_bytes: int) -> None:
        self._connection = connection
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._pending = 0
        self._pending_bytes = 0
        self._live: _Live | None = None
        self._back: asyncio.Event = asyncio.Event()
        self._running = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, timeout_s: float) -> None:
        """Connect, trying again until `timeout_s` is over. Raises BrokerUnavailable."""
        reason = "no answer"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        self._live = await self._connect()
                        break
                    except (KafkaError, OSError) as error:
                        reason = f"{type(error).__name__}: {error}"
                        await asyncio.sleep(RENEW_WAIT_S)
        except TimeoutError as error:
            raise BrokerUnavailable(servers=",".join(self._connection.servers), reason=reason) from error
        self._running = True
        self._back.set()

    async def stop(self, timeout_s: float) -> None:
        """Wait for what is pending, bounded, and disconnect. What is not acknowledged by then fails."""
        self._running = False
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        lanes = [task for task in self._tasks if not task.done()]
        if lanes:
            await asyncio.wait(lanes, timeout=max(0.0, timeout_s - END_WITHIN_S))
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=1.0)
        live, self._live = self._live, None
        if live is not None:
            await end(live.producer, max(0.5, min(END_WITHIN_S, deadline - loop.time())))

    @property
    def client(self) -> Any | None:
        """aiokafka's network client while connected, to ask whether the cluster answers."""
        return self._live.producer.client if self._live is not None else None

    async def send(self, topic: TopicLanes, message: Message, timestamp_ms: int, timeout_s: float) -> None:
        """Return when it is acknowledged. Errors as `Broker.publish` says (cases I1, I2, I22)."""
        size = size_of(message)
        if size > topic.max_record_bytes:
            raise RecordTooLarge(topic=topic.name, bytes=size, max_bytes=topic.max_record_bytes)
        self._admit(1, size)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        item = Item(message, timestamp_ms, size, done)
        lane = topic.lanes[partition_of(message.key, len(topic.lanes))]
        self._queue(lane, item)
        timer = loop.call_later(timeout_s, expire, done)
        try:
            await done
        finally:
            timer.cancel()
            self._release(1, size)
            if not item.sent:
                give_up(lane)

    async def send_many(
        self, topic: TopicLanes, messages: Sequence[Message], timestamp_ms: int, timeout_s: float
    ) -> None:
        """The same for many at once, in order per key. Raises the first error when all have an outcome."""
        sizes = [size_of(message) for message in messages]
        if sizes and max(sizes) > topic.max_record_bytes:
            raise RecordTooLarge(topic=topic.name, bytes=max(sizes), max_bytes=topic.max_record_bytes)
        self._admit(len(messages), sum(sizes))
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[None]] = []
        queued: list[tuple[Lane, Item]] = []
        for message, size in zip(messages, sizes, strict=True):
            done: asyncio.Future[None] = loop.create_future()
            item = Item(message, timestamp_ms, size, done)
            lane = topic.lanes[partition_of(message.key, len(topic.lanes))]
            self._queue(lane, item)
            waiting.append(done)
            queued.append((lane, item))
        timer = loop.call_later(timeout_s, expire_all, waiting)
        try:
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        finally:
            timer.cancel()
            self._release(len(messages), sum(sizes))
            for lane, item in queued:
                if not item.sent:
                    give_up(lane)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    # --- lanes -----------------------------------------------------------------------------------------------

    def _admit(self, count: int, size: int) -> None:
        if not self._running:
            raise BrokerUnavailable("the broker is not started")
        if self._pending + count > self._max_pending or self._pending_bytes + size > self._max_pending_bytes:
            raise BrokerUnavailable("too much waits for an acknowledgement already", pending=self._pending)
        self._pending += count
        self._pending_bytes += size

    def _release(self, count: int, size: int) -> None:
        self._pending -= count
        self._pending_bytes -= size

    def _queue(self, lane: Lane, item: Item) -> None:
        lane.pending.append(item)
        if not lane.busy:
            lane.busy = True
            self._spawn(self._drain(lane))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, lane: Lane) -> None:
        items: list[Item] = []
        try:
            while lane.pending:
                live = self._live
                if live is None:
                    await self._wait_for_producer(lane)
                    continue
                builder, items = next_batch(lane, live.producer)
                if items:
                    await self._deliver(lane, live, builder, items)
        except asyncio.CancelledError:
            settle(items, BrokerUnavailable("the broker was stopped before the acknowledgement"))
            raise
        except Exception as error:
            LOG.exception("a lane of topic %s failed", lane.topic)
            settle(items, BrokerError(f"publishing failed ({type(error).__name__})"))
        finally:
            lane.busy = False
            if lane.pending and self._running:
                lane.busy = True
                self._spawn(self._drain(lane))
            else:
                settle(lane.pending, BrokerUnavailable("the broker was stopped before the acknowledgement"))
                lane.pending.clear()

    async def _wait_for_producer(self, lane: Lane) -> None:
        try:
            async with asyncio.timeout(1.0):
                await self._back.wait()
        except TimeoutError:
            purge(lane)

    async def _deliver(self, lane: Lane, live: _Live, builder: Any, items: Sequence[Item]) -> None:
        """Hand a batch to aiokafka and tell everybody what became of it."""
        try:
            sent = await live.producer.send_batch(builder, lane.topic, partition=lane.number)
        except KafkaError as error:
            self._refused(live, items, error)
            return
        await asyncio.wait({sent, live.lost}, timeout=STUCK_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
        if not sent.done():
            sent.add_done_callback(_ignore)
            settle(items, BrokerUnavailable("the broker does not acknowledge"))
            self._renew(live, f"no acknowledgement in {STUCK_AFTER_S} s")
            return
        failure = sent.exception()
        if failure is not None:
            self._refused(live, items, failure)
        else:
            settle(items, None)

    def _refused(self, live: _Live, items: Sequence[Item], error: BaseException) -> None:
        if len(items) == 1 and isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
            settle(items, RecordTooLarge(bytes=items[0].size_bytes))
        else:
            settle(items, BrokerUnavailable("the broker refused a batch", reason=type(error).__name__))
        self._renew(live, type(error).__name__)

    # --- supervision -----------------------------------------------------------------------------------------

    def _renew(self, live: _Live, reason: str) -> None:
        """Replace this producer; once, however many lanes find it broken."""
        if live is not self._live:
            return
        LOG.warning("the Kafka producer is replaced: %s", reason)
        self._live = None
        self._back.clear()
        if not live.lost.done():
            live.lost.set_result(None)
        self._spawn(self._replace(live))

    async def _replace(self, live: _Live) -> None:
        await end(live.producer, END_WITHIN_S)
        wait_s = RENEW_WAIT_S
        while self._running:
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    self._live = await self._connect()
            except (KafkaError, OSError, TimeoutError) as error:
                LOG.warning("the Kafka producer could not be started again: %s", type(error).__name__)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RENEW_WAIT_CEILING_S)
            else:
                self._back.set()
                return

    async def _connect(self) -> _Live:
        producer = AIOKafkaProducer(
            **self._connection.options(),
            acks="all",
            enable_idempotence=True,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=64 * 1024 * 1024,  # sizes are checked per topic, before a message is queued
            request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            linger_ms=0,
        )
        try:
            await producer.start()
        except BaseException:
            await end(producer, 0.5)
            raise
        return _Live(producer, asyncio.get_running_loop().create_future())


def _ignore(sent: asyncio.Future[Any]) -> None:
    if not sent.cancelled():
        sent.exception()
