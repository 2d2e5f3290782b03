"""KafkaSubscription: one member of a group on Kafka, around one aiokafka consumer at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from consumer.broker.base import STANDS_WITHIN_S, Lag, Partition, Record
from consumer.broker.kafka.causes import broker_error
from consumer.broker.kafka.connection import KafkaConnection, end, given_up
from consumer.broker.kafka.consumer import JOIN_SLACK_S, REBALANCE_SLACK_S, Listener, open_consumer
from consumer.broker.kafka.header_names import is_unreadable_name
from consumer.broker.kafka.progress import Marks, Progress, mark_of, stored_at
from consumer.broker.membership import Membership
from consumer.clock import Clock, is_set_within
from consumer.errors import BrokerError, BrokerUnavailable, again
from consumer.telemetry.logs import Condition

LAG_TIMEOUT_S = 10.0
WATCH_EVERY_S = 5.0
STALLED_AFTER_S = 30.0
UNANSWERED_LIMIT = 6
RESTART_WAIT_S = 1.0
RESTART_WAIT_CEILING_S = 10.0
REPLACED_QUIET_S = 60.0
"""Who was not replaced for so long reads again."""

Pulled = tuple[int, Mapping[TopicPartition, Sequence[Any]]]


class KafkaSubscription:
    """See `consumer.broker.base.Subscription`. Made by `KafkaBroker.subscribe`."""

    def __init__(
        self,
        connection: KafkaConnection,
        membership: Membership,
        *,
        clock: Clock,
        exists: Callable[[str], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._membership = membership
        self._group = membership.group
        self._exists = exists
        self._consumer: Any | None = None
        self._listener: Listener | None = None
        self._owned: frozenset[Partition] = frozenset()
        self._told: frozenset[Partition] = frozenset()
        self._unsure: frozenset[Partition] = frozenset()
        """Partitions of which it is not known whether the group's offset was set back; this member reads on from where
        it was."""
        self._doubted: frozenset[Partition] = frozenset()
        """Partitions of which it is to be asked whether the log still has the place where they are read on."""
        self._proofs: dict[Partition, tuple[int, str]] = {}
        """Where they are read on, and the mark of the record before, which is read first: with it, it is the log it
        was."""
        self._lost: frozenset[Partition] = frozenset()
        """Partitions whose end the log has lost: another record came first. They are read from their beginning."""
        self._leaderless: frozenset[Partition] = frozenset()
        """Partitions that are in doubt once they have a leader."""
        self._any_names = False
        """Whether a header was met whose name is not UTF-8: consumers that are made from then on read such names."""
        self._reading = False
        self._epoch = 0
        self._clock = clock
        self._progress = Progress(clock)
        self._marks = Marks()
        self._pulling: asyncio.Task[Pulled] | None = None
        self._change = asyncio.Event()
        self._alarm = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._broken: str | None = None
        self._refused: BrokerError | None = None
        self._polled_at = 0.0
        self._moved_at = 0.0
        self._running = False
        self._stopped = False

    async def start(self) -> None:
        """Join the group. Raises BrokerUnavailable when that does not succeed in time, or TopicUnknown."""
        if self._running or self._stopped:
            return
        for topic in self._membership.topics:
            await self._exists(topic)
        await self._open()
        self._running = True
        self._tasks = [asyncio.create_task(self._watch())]

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Leave the group, bounded. Does not commit and does not call `on_revoked`."""
        was_running, self._running, self._stopped = self._running, False, True
        self._change.set()
        if not was_running:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=1.0)
        self._reading, self._owned, self._told = False, frozenset(), frozenset()
        await self._close(timeout_s)

    @property
    def running(self) -> bool:
        """Whether it is started and not stopped."""
        return self._running

    @property
    def stopped(self) -> bool:
        """Whether it is stopped for good."""
        return self._stopped

    # --- reading ---------------------------------------------------------------------------------------------

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """See the Protocol. Raises BrokerUnavailable when not running, when aiokafka gave up (it is restarted), and for
        as long as it cannot be restarted.

        aiokafka's own `getmany` is never cancelled: it breaks its bookkeeping, and during a rebalance it ignores its
        time limit. So it runs in a task that outlives this call if need be, and its records come with the next call.
        """
        if not self._running:
            raise BrokerUnavailable("the subscription is not running", group=self._group)
        loop = asyncio.get_running_loop()
        self._polled_at = loop.time()
        deadline = self._polled_at + timeout_s
        while self._running:
            consumer = self._consumer
            left_s = deadline - loop.time()
            waits = self._broken is not None or (not self._reading and _holds_records(self._pulling))
            if consumer is None or waits:
                self._change.clear()
                if not await is_set_within(self._change, left_s):
                    if self._refused is not None:  # who asks must know that this is no want of records
                        raise again(self._refused)
                    return ()
                continue
            if self._reading and (self._look_for_leaders(consumer) or self._lost):
                await self._examine(consumer)
                continue
            if self._pulling is None:
                self._pulling = asyncio.create_task(self._pull(consumer, max_records, max(0.0, left_s)))
            pulling = self._pulling
            if not pulling.done():
                await asyncio.wait({pulling}, timeout=max(0.01, left_s + 0.05))
            if not pulling.done():
                return ()
            if not self._reading and _holds_records(pulling):
                continue  # `on_assigned` has not returned yet
            if self._reading and self._look_for_leaders(consumer):
                continue  # what it brought may lie in another log
            if pulling is not self._pulling:
                continue  # the consumer was replaced meanwhile
            self._pulling = None
            records = self._records(pulling)
            if records or loop.time() >= deadline:
                return records
        return ()

    async def _pull(self, consumer: Any, max_records: int, timeout_s: float) -> Pulled:
        found = await consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=max_records)
        return self._epoch, found

    def _records(self, pulling: asyncio.Task[Pulled]) -> list[Record]:
        """What was pulled, unless the partitions were taken away since (then they are read again by their owner)."""
        try:
            epoch, found = pulling.result()
        except (Exception, asyncio.CancelledError) as error:  # cancelled: one of aiokafka's own tasks was
            self._broken = type(error).__name__
            self._alarm.set()
            if is_unreadable_name(error) and not self._any_names:
                self._any_names = True  # what was read before it comes again, with the next consumer
                return []
            raise broker_error(error, "the broker could not be read", group=self._group) from error
        if epoch != self._epoch:
            return []
        records: list[Record] = []
        for spot, messages in found.items():
            if not messages:
                continue
            partition = Partition(spot.topic, spot.partition)
            if not self._follow(partition, messages[0]):
                continue
            if messages[0].offset < self._proofs.pop(partition, (0, ""))[0]:
                messages = messages[1:]
            if not messages:
                continue
            taken = [_record(partition, message, self._clock) for message in messages]
            records += taken
            published_ms = int(taken[0].published_at.timestamp() * 1000)
            self._progress.delivered(partition, messages[0].offset, published_ms, messages[-1].offset + 1)
            self._marks.delivered(partition, messages[-1])
        if records:
            self._moved_at = asyncio.get_running_loop().time()
        return records

    # --- whether it is the log it was ------------------------------------------------------------------------

    def _follow(self, partition: Partition, first: Any) -> bool:
        """Whether what begins with this one follows what was read of the partition. Else the log has lost its end, and
        may have grown again."""
        place = self._proofs.get(partition)
        if place is None or (first.offset == place[0] - 1 and mark_of(first) == place[1]):
            return True
        self._lost |= {partition}
        return False

    async def _examine(self, consumer: Any) -> None:
        """Ask of the doubted partitions whether the log reaches where they are read on; it is read there once more from
        the record before. Where it does not, or has another record there, it has lost its end: whoever reads is told,
        and the group goes back to the beginning. Raises as `poll`, and what `on_replaced` raises: the next does it.
        What has no leader brings nothing, and would hold up the others: it is asked about once it has one."""
        owned, wanted = self._owned, (self._doubted | self._lost) & self._owned
        led = _led(consumer, wanted)
        doubted, self._doubted, self._lost = self._doubted & led, frozenset(), self._lost & led
        self._leaderless |= wanted - led
        spots = {one: _spot(one) for one in led}
        if not spots:
            return
        try:
            async with self._asking(STANDS_WITHIN_S, "the broker did not tell how far the log goes"):
                starts, ends, stored = await asyncio.gather(  # at once: each waits for a fetch that is under way
                    consumer.beginning_offsets(list(spots.values())),
                    consumer.end_offsets(list(spots.values())),
                    consumer._coordinator.fetch_committed_offsets(list(spots.values())),
                )
            places = {one: self._marks.last(one) or _place(stored.get(spots[one])) for one in doubted}
            lost = self._lost | {one for one, (offset, _) in places.items() if offset > ends[spots[one]]}
            if lost:
                await self._membership.replaced(lost)
                async with self._asking(STANDS_WITHIN_S, "the group was not set back"):
                    await consumer.commit({spots[one]: starts[spots[one]] for one in lost})
            if self._pulling is not None:
                await asyncio.wait({self._pulling})  # what it brings may lie elsewhere
        except (CommitFailedError, IllegalStateError):
            return  # the group has rebalanced: whoever has them now asks
        except BaseException:
            self._doubted |= doubted
            raise
        if owned is not self._owned:
            return
        self._lost -= lost
        self._reads_on(consumer, {one: starts[spots[one]] for one in lost})
        moved = {spots[one] for one in lost}
        for one, (offset, mark) in places.items():
            is_there = bool(mark) and offset > starts[spots[one]]
            if one not in lost and (is_there or self._marks.last(one) is not None):
                self._proofs.pop(one, None)
                if is_there:
                    self._proofs[one] = (offset, mark)
                consumer.seek(spots[one], offset - 1 if is_there else offset)  # what was fetched ahead comes again
                moved.add(spots[one])
        if self._pulling is not None:
            self._pulling = asyncio.create_task(_without(self._pulling, moved))

    def _reads_on(self, consumer: Any, places: Mapping[Partition, int]) -> None:
        """The group was set back to these places, and this member reads on from there."""
        for partition, offset in places.items():
            consumer.seek(_spot(partition), offset)
            self._progress.rewound(partition, offset)
            self._proofs.pop(partition, None)
        self._marks.forget(places)

    def _look_for_leaders(self, consumer: Any) -> bool:
        """Whether any partition is in doubt; so are those that had no leader, and have one now."""
        if self._leaderless:
            found = _led(consumer, self._leaderless)
            self._doubted |= found
            self._leaderless -= found
        return bool(self._doubted)

    def _doubt(self) -> None:
        """A server may have begun anew, without the end of what it had."""
        self._doubted = self._owned

    # --- where the group stands ------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[Partition, int], timeout_s: float = 10.0) -> frozenset[Partition]:
        """See the Protocol. An offset never goes back: a lower one than stored counts as stored."""
        consumer, owned = self._consumer, self._owned  # each assignment has a frozenset object of its own
        mine = {partition: offset for partition, offset in offsets.items() if partition in owned}
        if consumer is None or not mine:
            return frozenset()
        async with self._asking(timeout_s, "the offsets were not stored"):  # its own commit() tries for ever
            try:
                await self._learn(consumer, mine)
                wanted = {spot: offset for spot, offset in mine.items() if self._progress.advances(spot, offset)}
                if wanted and owned is self._owned:
                    marked = {_spot(one): (offset, self._marks.at(one, offset)) for one, offset in wanted.items()}
                    await consumer.commit(marked)
            except (CommitFailedError, IllegalStateError):
                return frozenset()  # normal: the group has rebalanced, the new owner reads them again
        if owned is not self._owned:
            return frozenset()
        self._progress.committed(wanted)
        for partition, offset in wanted.items():
            self._marks.committed(partition, offset)
        return frozenset(mine)

    async def stands(self) -> Mapping[Partition, int]:
        """See the Protocol."""
        consumer, owned = self._consumer, self._owned
        if consumer is None or not owned:
            return {}
        spots = {partition: _spot(partition) for partition in owned}
        async with self._asking(STANDS_WITHIN_S, "the broker did not tell where the group stands"):
            starts = await consumer.beginning_offsets(list(spots.values()))
            stored = await asyncio.gather(*(consumer.committed(spot) for spot in spots.values()))
        if owned is not self._owned:
            return {}
        found = zip(spots.items(), stored, strict=True)
        return {partition: starts[spot] if offset is None else offset for (partition, spot), offset in found}

    async def rewind(
        self, offsets: Mapping[Partition, int], *, anyway: Collection[Partition] = ()
    ) -> frozenset[Partition]:
        """See the Protocol."""
        consumer, owned = self._consumer, self._owned
        stands = await self.stands()
        must = self._unsure.union(anyway)
        back = {one: at for one, at in offsets.items() if one in stands and (at < stands[one] or one in must)}
        if consumer is None or not back:
            return frozenset()
        self._unsure = frozenset(back)
        async with self._asking(STANDS_WITHIN_S, "the group was not set back"):
            try:
                if self._pulling is not None:
                    await asyncio.wait({self._pulling})  # what it brings may lie behind the place to go back to
                await consumer.commit({_spot(partition): offset for partition, offset in back.items()})
            except (CommitFailedError, IllegalStateError):
                return frozenset()  # the group has rebalanced: whoever has them now goes back itself
        if owned is not self._owned:
            return frozenset()
        self._unsure = frozenset()
        self._reads_on(consumer, back)
        if self._pulling is not None:
            self._pulling = asyncio.create_task(_without(self._pulling, {_spot(partition) for partition in back}))
        return frozenset(back)

    def assignment(self) -> frozenset[Partition]:
        """The partitions this member reads now; those it is letting go are not among them."""
        return self._owned if self._reading else frozenset()

    async def lag(self) -> Mapping[Partition, Lag]:
        """See the Protocol. The age is known from the moment a record was handed out; before that it counts from when
        the lag was first seen."""
        consumer, owned = self._consumer, self._owned
        if consumer is None or not owned:
            return {}
        async with self._asking(LAG_TIMEOUT_S, "the broker did not tell the lag"):
            ends = await consumer.end_offsets([_spot(partition) for partition in owned])
            await self._learn(consumer, owned)
            read = await _read_up_to(consumer, owned)
        if _holds_records(self._pulling):
            read = {}  # they were read, and wait for the next poll
        return {one: self._progress.lag(one, ends[_spot(one)], read.get(one)) for one in owned}

    @asynccontextmanager
    async def _asking(self, within_s: float, message: str) -> AsyncIterator[None]:
        """Ask the cluster, for so long at most. `message`: what it did not do. Raises BrokerUnavailable when there is
        no answer in time, and what it refuses, as `broker_error`."""
        try:
            async with asyncio.timeout(within_s):
                yield
        except TimeoutError as error:
            given_up(getattr(self._consumer, "_coordinator", None), "_do_commit_offsets")  # no cancel reaches it
            raise BrokerUnavailable(f"{message} in time", group=self._group) from error
        except KafkaError as error:
            raise broker_error(error, message, group=self._group) from error

    async def _learn(self, consumer: Any, partitions: Iterable[Partition]) -> None:
        """Ask where the group stands in partitions of which nothing was handed out in this assignment. Without it a
        member that came back after its session could move an offset backwards."""
        unknown = [partition for partition in partitions if not self._progress.known(partition)]
        if not unknown:
            return
        owned = self._owned
        starts = await consumer.beginning_offsets([_spot(partition) for partition in unknown])
        found = await asyncio.gather(*(consumer.committed(_spot(partition)) for partition in unknown))
        if owned is self._owned:
            for partition, committed in zip(unknown, found, strict=True):
                self._progress.begin(partition, max(committed or 0, starts[_spot(partition)]))

    # --- membership ------------------------------------------------------------------------------------------

    async def _lose(self) -> None:
        """All partitions are being taken away: no record of theirs is handed out any more, then `on_revoked`."""
        told, self._told = self._told, frozenset()
        self._epoch += 1
        self._reading = False
        if told:
            await self._membership.revoked(told)
        self._marks.forget(self._owned)
        self._owned = self._unsure = self._doubted = self._lost = self._leaderless = frozenset()
        self._proofs.clear()
        self._progress.forget()

    async def _gain(self, assigned: Iterable[TopicPartition]) -> None:
        """Partitions were given: `on_assigned`, then their records are handed out."""
        epoch = self._epoch
        self._owned = self._doubted = frozenset(Partition(spot.topic, spot.partition) for spot in assigned)
        if self._owned:
            self._told = self._owned
            await self._membership.assigned(self._owned)
        if epoch == self._epoch:
            self._reading = True
            self._moved_at = asyncio.get_running_loop().time()
            self._change.set()

    async def _open(self) -> None:
        self._consumer, self._listener = await open_consumer(
            self._connection,
            self._membership.topics,
            self._group,
            on_gain=self._gain,
            on_lose=self._lose,
            on_other=self._doubt,
            rebalance_s=self._membership.drain_s + REBALANCE_SLACK_S,
            heartbeat_s=self._membership.heartbeat_s,
            session_s=self._membership.session_s,
            any_names=self._any_names,
        )
        self._moved_at = asyncio.get_running_loop().time()
        self._change.set()

    async def _close(self, timeout_s: float) -> None:
        consumer, self._consumer = self._consumer, None
        listener, self._listener = self._listener, None
        pulling, self._pulling = self._pulling, None
        if listener is not None:
            listener.detach()
        if consumer is not None:
            await end(consumer, timeout_s)
        if pulling is not None:
            pulling.cancel()  # its consumer is gone, there is nothing left to break
            await asyncio.wait({pulling}, timeout=1.0)
            if pulling.done() and not pulling.cancelled():
                pulling.exception()

    # --- supervision -----------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Replace a consumer that gave up or stands still although there is something to read (#1037, #712)."""
        unanswered = 0
        blind = Condition("member_not_watched", group=self._group)
        replaced = Condition("member_replaced", group=self._group, quiet_s=REPLACED_QUIET_S)
        while True:
            await is_set_within(self._alarm, WATCH_EVERY_S)
            self._alarm.clear()
            replaced.lapse()
            try:
                if self._broken is None:
                    self._broken = await self._stalled()
                unanswered = 0
                blind.over()
            except Exception as error:  # noqa: BLE001 - aiokafka may raise anything; the watch must go on
                blind.lasts(error)
                unanswered += 1
                if unanswered >= UNANSWERED_LIMIT:
                    self._broken = "the cluster does not answer"
            if self._broken is not None:
                replaced.lasts(self._broken)
                await self._replace()
                unanswered = 0

    async def _stalled(self) -> str | None:
        """Why the consumer is stuck, None when it is not: nobody asks, there is nothing to read, or it moves."""
        now = asyncio.get_running_loop().time()
        if now - self._polled_at > STALLED_AFTER_S or now - self._moved_at < STALLED_AFTER_S:
            return None
        if not self._reading:
            limit_s = self._membership.drain_s + REBALANCE_SLACK_S + JOIN_SLACK_S
            return "no assignment after a rebalance" if now - self._moved_at > limit_s else None
        moved_at, epoch = self._moved_at, self._epoch
        lags = await self.lag()
        behind = any(self._progress.unread(partition, lag) for partition, lag in lags.items())
        if behind and moved_at == self._moved_at and epoch == self._epoch:
            return "records wait and none arrives"
        return None

    async def _replace(self) -> None:
        await self._lose()
        await self._close(5.0)
        away = Condition("member_not_started_again", group=self._group)
        wait_s = RESTART_WAIT_S
        while True:
            try:
                await self._open()
            except Exception as error:  # noqa: BLE001 - aiokafka may raise anything; the member must come back
                known = error if isinstance(error, BrokerError) else broker_error(error, "the member cannot be started")
                away.lasts(known)
                self._refused = known
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RESTART_WAIT_CEILING_S)
            else:
                away.over()
                self._broken = self._refused = None
                self._change.set()
                return


def _spot(partition: Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.number)


def _led(consumer: Any, partitions: Iterable[Partition]) -> frozenset[Partition]:
    """Those that have a leader, as far as aiokafka knows."""
    cluster = consumer._client.cluster
    return frozenset(one for one in partitions if cluster.leader_for_partition(_spot(one)) not in (None, -1))


def _place(stored: Any | None) -> tuple[int, str]:
    """Where the group stands, and what it kept beside that, as aiokafka tells it. One of before kept nothing."""
    return (0, "") if stored is None or stored.offset < 0 else (stored.offset, stored.metadata or "")


async def _without(pulling: asyncio.Task[Pulled], spots: Collection[TopicPartition]) -> Pulled:
    """What was pulled, less the records of these."""
    epoch, found = await pulling
    return epoch, {spot: messages for spot, messages in found.items() if spot not in spots}


async def _read_up_to(consumer: Any, owned: Iterable[Partition]) -> Mapping[Partition, int]:
    """Where it reads on in each partition; nothing while the group rebalances."""
    try:
        return {partition: await consumer.position(_spot(partition)) for partition in owned}
    except IllegalStateError:
        return {}


def _holds_records(pulling: asyncio.Task[Pulled] | None) -> bool:
    return (
        pulling is not None
        and pulling.done()
        and not pulling.cancelled()
        and pulling.exception() is None
        and any(pulling.result()[1].values())
    )


def _record(partition: Partition, message: Any, clock: Clock) -> Record:
    """A record without a time (see NO_TIMESTAMP) counts as published when it is read: its age is not known."""
    return Record(
        partition=partition,
        offset=message.offset,
        key=message.key or b"",
        value=message.value or b"",
        headers={name: value or b"" for name, value in message.headers},
        published_at=stored_at(message.timestamp) or clock.now(),
    )
