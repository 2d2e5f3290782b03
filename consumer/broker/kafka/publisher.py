"""KafkaPublisher: a supervised idempotent producer that publishes in rounds.

A round gathers what arrives until arrivals pause (some turns of the event loop, at most a millisecond), or for two
where many wait. Then every lane (partition) with something waiting and nothing on its way sends one batch, and the
batches share a request. So a lone sender never waits for a linger, many at once cost few requests, and a message costs
a future, no task and no timer.

aiokafka's idempotent producer retries for ever and never fails while a broker is silent (#1101), and after one failed
batch its sequence numbers have a hole (#1017). Hence: callers have their own time limit, what waits is bounded, and
a producer whose batch failed or got stuck is replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, cast

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError

from consumer.broker.base import Message
from consumer.broker.kafka.causes import REFUSALS, broker_error, of_partition, why_unreachable
from consumer.broker.kafka.connection import KafkaConnection, ask_calmly, end
from consumer.broker.kafka.lanes import (
    Item,
    Lane,
    TopicLanes,
    expire,
    expire_all,
    give_up,
    next_batch,
    partition_of,
    refuse,
    send_in_larger_batches,
    send_in_smaller_batches,
    settle,
    too_large,
)
from consumer.broker.kafka.topics import MAX_BATCH_BYTES
from consumer.causes import of_kafka
from consumer.clock import is_set_within
from consumer.errors import BrokerError, BrokerUnavailable, RecordRefused, RecordTooLarge
from consumer.telemetry.logs import Condition

LOG = structlog.get_logger(__name__)

ROUND_AT_MOST_S = 0.001
CROWDED_ROUND_S = 0.002
QUIET_TURNS = 3
CROWD = 64
SWEEP_EVERY_S = 0.05
STUCK_AFTER_S = 30.0
WATCH_EVERY_S = 0.5
REQUEST_TIMEOUT_S = 10.0
RENEW_WAIT_S = 0.5
RENEW_WAIT_CEILING_S = 5.0
END_WITHIN_S = 2.0
REPLACED_QUIET_S = 60.0
"""A producer that was not replaced for so long publishes again."""


class _Flight:
    """One batch on its way, and since when."""

    __slots__ = ("items", "lane", "since_s")

    def __init__(self, lane: Lane, items: list[Item], since_s: float) -> None:
        self.lane = lane
        self.items = items
        self.since_s = since_s


class KafkaPublisher:
    """Publishes. `max_pending` messages and `max_pending_bytes` bound what waits; beyond, publishing fails at once."""

    def __init__(self, connection: KafkaConnection, *, max_pending: int, max_pending_bytes: int) -> None:
        self.cluster_id: str | None = None
        self._connection = connection
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._pending = 0
        self._pending_bytes = 0
        self._producer: Any | None = None
        self._busy: set[Lane] = set()
        self._dirty: list[Lane] = []
        self._flights: dict[Lane, _Flight] = {}
        self._deadlines: dict[asyncio.Future[None], float] = {}
        self._sweeping = False
        self._arrived = 0
        self._gathering = False
        self._empty = asyncio.Event()
        self._running = False
        self._replaced = Condition("producer_replaced", quiet_s=REPLACED_QUIET_S)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()  # asking for it costs a call of the system

    async def start(self, timeout_s: float) -> None:
        """Connect, trying again until `timeout_s` is over. Raises BrokerUnavailable."""
        last: BaseException = TimeoutError("no answer")
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        self._producer = await self._connect()
                        break
                    except REFUSALS as error:
                        last = error
                        await asyncio.sleep(RENEW_WAIT_S)
        except TimeoutError as error:
            known = await why_unreachable(self._connection) or of_kafka(last)
            reason = f"{type(last).__name__}: {last}"
            raise known or BrokerUnavailable(servers=",".join(self._connection.servers), reason=reason) from error
        self._running = True
        self._spawn(self._watch())

    async def stop(self, timeout_s: float) -> None:
        """Wait for what is pending, bounded, and disconnect. What is not acknowledged by then fails."""
        self._running = False
        deadline = self._loop.time() + timeout_s
        if self._busy:  # not `_dirty` and `_flights`: between a round's end and its flight a lane is in neither
            self._empty.clear()
            await is_set_within(self._empty, timeout_s - END_WITHIN_S)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        stopped = BrokerUnavailable("the broker was stopped before the acknowledgement")
        for lane in self._busy:
            flight = self._flights.pop(lane, None)
            settle([*(flight.items if flight else ()), *lane.pending], stopped)
            lane.pending.clear()
        self._busy.clear()
        self._dirty.clear()
        producer, self._producer = self._producer, None
        if producer is not None:
            await end(producer, max(0.5, min(END_WITHIN_S, deadline - self._loop.time())))

    @property
    def client(self) -> Any | None:
        """aiokafka's network client while connected, to ask whether the cluster answers."""
        return self._producer.client if self._producer is not None else None

    async def send(self, topic: TopicLanes, message: Message, timeout_s: float) -> None:
        """Return when it is acknowledged. Errors as `Broker.publish` says (cases I1, I2, I22)."""
        size = message.size_bytes
        if size > topic.max_record_bytes:
            raise too_large(topic, size)
        self._admit(1, size)
        loop = self._loop
        done: asyncio.Future[None] = loop.create_future()
        item = Item(message, size, done)
        lane = topic.lanes[partition_of(message.key, len(topic.lanes))]
        self._queue(lane, item)
        self._deadlines[done] = loop.time() + timeout_s
        if not self._sweeping:
            self._sweeping = True
            loop.call_later(SWEEP_EVERY_S, self._sweep)
        try:
            await done
        except BrokerUnavailable as error:
            raise _of_partition(error, self._producer, lane) from None
        finally:
            del self._deadlines[done]
            self._release(1, size)
            if not item.sent:
                give_up(lane, item)

    def _sweep(self) -> None:
        """End the waits whose time is over. One timer for all: a timer each costs more than the rest of a send."""
        now_s = self._loop.time()
        for done, deadline_s in list(self._deadlines.items()):
            if deadline_s <= now_s:
                expire(done)
        self._sweeping = bool(self._deadlines)
        if self._sweeping:
            self._loop.call_later(SWEEP_EVERY_S, self._sweep)

    async def send_many(
        self, topic: TopicLanes, messages: Sequence[Message], timeout_s: float
    ) -> Sequence[BrokerError | None]:
        """The same for many at once, none of them too large, in order per key: what became of each, when all have an
        outcome. One that fails takes those of its key behind it along."""
        sizes = [message.size_bytes for message in messages]
        try:
            self._admit(len(messages), sum(sizes))
        except BrokerUnavailable as error:
            return [error] * len(messages)
        loop, call = self._loop, object()
        waiting: list[asyncio.Future[None]] = []
        queued: list[tuple[Lane, Item]] = []
        for message, size in zip(messages, sizes, strict=True):
            done: asyncio.Future[None] = loop.create_future()
            item = Item(message, size, done, call)
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
                    give_up(lane, item)
        found = cast("list[BrokerError | None]", outcomes)  # what `settle` and `expire` tell, and no more
        return [
            error if error is None else _of_partition(error, self._producer, lane)
            for error, (lane, _) in zip(found, queued, strict=True)
        ]

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
        self._arrived += 1
        if lane not in self._busy:
            self._busy.add(lane)
            self._dirty.append(lane)
            self._begin_round()

    def _landed(self, lane: Lane) -> None:
        """Nothing of this lane is on its way: its next batch joins the next round."""
        if lane.pending:
            self._dirty.append(lane)
            self._begin_round()
            return
        self._busy.discard(lane)
        if not self._busy:
            self._empty.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- rounds ----------------------------------------------------------------------------------------------

    def _begin_round(self) -> None:
        if not self._gathering and self._producer is not None:
            self._gathering = True
            if self._pending >= CROWD:
                self._loop.call_later(CROWDED_ROUND_S, self._end_round)
            else:
                self._loop.call_soon(self._gather, self._loop.time() + ROUND_AT_MOST_S, self._arrived, 0)

    def _gather(self, until_s: float, seen: int, quiet: int) -> None:
        """Once a turn of the event loop, until nothing arrived for some turns or the time is over."""
        quiet = quiet + 1 if self._arrived == seen else 0
        if quiet < QUIET_TURNS and self._loop.time() < until_s:
            self._loop.call_soon(self._gather, until_s, self._arrived, quiet)
            return
        self._end_round()

    def _end_round(self) -> None:
        self._gathering = False
        if self._producer is not None:
            lanes, self._dirty = self._dirty, []
            self._spawn(self._fly(self._producer, lanes))

    async def _fly(self, producer: Any, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            replaced = producer is not self._producer
            if replaced:
                self._landed(lane)  # with the next one
            elif producer.client.cluster.partitions_for_topic(lane.topic) is None:
                self._spawn(self._deliver(producer, lane))  # it has to ask first, the others need not wait for that
            else:
                await self._deliver(producer, lane)

    async def _deliver(self, producer: Any, lane: Lane) -> None:
        """Hand one batch to aiokafka; `_acknowledged` hears what became of it."""
        builder, items = next_batch(lane, producer)
        if not items:
            self._landed(lane)
            return
        flight = _Flight(lane, items, self._loop.time())
        self._flights[lane] = flight
        try:
            sent = await producer.send_batch(builder, lane.topic, partition=lane.number)
        except Exception as error:  # noqa: BLE001 - whatever it was, those who wait must hear of it
            self._refused(producer, flight, error)
        else:
            sent.add_done_callback(partial(self._acknowledged, producer, flight))

    def _acknowledged(self, producer: Any, flight: _Flight, sent: asyncio.Future[Any]) -> None:
        failure = BrokerUnavailable() if sent.cancelled() else sent.exception()
        if failure is not None:
            self._refused(producer, flight, failure)
        elif self._flights.get(flight.lane) is flight:
            del self._flights[flight.lane]
            settle(flight.items, None)
            send_in_larger_batches(flight.lane, flight.items, self._loop.time())
            self._landed(flight.lane)

    def _refused(self, producer: Any, flight: _Flight, error: BaseException) -> None:
        if self._flights.get(flight.lane) is not flight:
            return  # given up long ago
        del self._flights[flight.lane]
        if _is_gone(producer, flight.lane):
            gone = BrokerUnavailable("the topic has fewer partitions now", topic=flight.lane.topic)
            refuse(flight.lane, flight.items, gone)
            self._landed(flight.lane)
            return
        is_too_large = isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError)
        if not is_too_large:
            refused = broker_error(error, "the broker refused a batch", topic=flight.lane.topic)
            refuse(flight.lane, flight.items, _of_partition(refused, producer, flight.lane))
        elif len(flight.items) == 1:
            refuse(flight.lane, flight.items, _too_large(flight))
        else:
            send_in_smaller_batches(flight.lane, flight.items, self._loop.time())
        self._renew(producer, type(error).__name__, spares_others=is_too_large)
        self._landed(flight.lane)

    # --- supervision -----------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            self._replaced.lapse()
            since_s = min((flight.since_s for flight in self._flights.values()), default=self._loop.time())
            if self._loop.time() - since_s > STUCK_AFTER_S and self._producer is not None:
                self._renew(self._producer, f"no acknowledgement in {STUCK_AFTER_S} s")

    def _renew(self, producer: Any, reason: str, *, spares_others: bool = False) -> None:
        """Replace this producer; once, however many lanes find it broken. What it had on its way fails, unless only one
        lane's batch is at fault: what the other lanes sent is acknowledged while it ends."""
        if producer is not self._producer:
            return
        self._replaced.lasts(reason)
        self._producer = None
        if not spares_others:
            self._fail_flights(producer, reason)
        self._spawn(self._replace(producer, reason))

    def _fail_flights(self, producer: Any, reason: str) -> None:
        flights, self._flights = list(self._flights.values()), {}
        for flight in flights:
            error = BrokerUnavailable("the broker does not acknowledge", reason=reason)
            refuse(flight.lane, flight.items, _of_partition(error, producer, flight.lane))
            self._landed(flight.lane)

    async def _replace(self, producer: Any, reason: str) -> None:
        await end(producer, END_WITHIN_S)
        self._fail_flights(producer, reason)  # of those that were spared, what was not acknowledged meanwhile
        away = Condition("producer_not_started_again")
        wait_s = RENEW_WAIT_S
        while True:
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    self._producer = await self._connect()
            except (*REFUSALS, TimeoutError, BrokerError) as error:  # ours: of a TLS file that is being replaced, too
                away.lasts(error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RENEW_WAIT_CEILING_S)
            else:
                away.over()
                if self._dirty:
                    self._begin_round()
                return

    async def _connect(self) -> Any:
        reached = await self._connection.reached()
        producer = AIOKafkaProducer(
            **reached.options(),
            acks="all",
            enable_idempotence=True,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=64 * 1024 * 1024,  # sizes are checked per topic, before a message is queued
            request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            linger_ms=0,
        )
        ask_calmly(producer.client)
        self._hear(producer.client.cluster)
        try:
            await producer.start()
        except BaseException:
            await end(producer, 0.5)
            raise
        return producer

    def _hear(self, cluster: Any) -> None:
        """Every answer about the cluster says which it is, and aiokafka forgets it. One comes with each look whether it
        answers: a cluster that was made anew at the same address is another from then on, for all who use it."""
        update = cluster.update_metadata

        def updated(metadata: Any) -> None:
            self.cluster_id = getattr(metadata, "cluster_id", None)  # before Kafka 0.10.1 it has none
            update(metadata)

        cluster.update_metadata = updated


def _is_gone(producer: Any, lane: Lane) -> bool:
    """Whether the topic was made anew with fewer partitions, without this one. Keys lie among the others from then."""
    lanes = lane.home.lanes
    there = len(producer.client.cluster.partitions_for_topic(lane.topic) or lanes)
    if there < len(lanes):
        LOG.warning("topic_has_fewer_partitions", topic=lane.topic, partitions=there, before=len(lanes))
        del lanes[there:]
    return lane.number >= there


def _of_partition(error: BrokerError, producer: Any | None, lane: Lane) -> BrokerError:
    return error if producer is None else of_partition(error, producer.client.cluster, lane.topic, lane.number)


def _too_large(flight: _Flight) -> BrokerError:
    """What the refusal of a lone record means, which was within the bound when it was sent: the topic's limit was
    lowered since, and takes it again when that is set right. Where its limit cannot be read, it is smaller than was
    assumed, and takes it never."""
    size, lanes = flight.items[0].size_bytes, flight.lane.home
    if not lanes.is_bound_known:
        return RecordTooLarge(bytes=size)
    said = "the topic takes less than when this process looked at it: was its max.message.bytes lowered?"
    return RecordRefused(said, topic=lanes.name, bytes=size)
