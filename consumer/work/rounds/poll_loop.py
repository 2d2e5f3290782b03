"""Poll loop: poll, take, commit: what the log has for this worker gets into the ledger, for as long as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from consumer.broker.base import Broker, Lag, Partition, Record, Subscription, next_offsets
from consumer.clock import Clock, rest, until_tick
from consumer.errors import BrokerError, ConsumerError, LedgerBehind, LedgerError, again
from consumer.ledger import Database, log_memory
from consumer.ledger.tables import RunStatus
from consumer.telemetry.logs import Condition
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.ingest.ingest import Ingest, Taken
from consumer.work.ingest.next_batch import NextBatch
from consumer.work.ingest.restored import tell_lost
from consumer.work.observer import Observer
from consumer.work.outbound.relay import Relay
from consumer.work.pausing.pauser import Pauser
from consumer.work.rounds.position import Position

POLL_S = 1.0
RETRY_FIRST_S = 0.2
RETRY_MOST_S = 5.0

_log = structlog.get_logger(__name__)


class PollLoop:
    """A member of the workers' group: takes `batch` records of `topic` at a time, and may take `drain_s` to leave. What
    it took is told to `dispatcher`, `relay` and `pauser`."""

    def __init__(
        self,
        *,
        database: Database,
        broker: Broker,
        topic: str,
        group: str,
        batch: int,
        drain_s: float,
        ingest: Ingest,
        dispatcher: Dispatcher,
        relay: Relay,
        pauser: Pauser,
        position: Position,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._database = database
        self._broker = broker
        self._topic = topic
        self._group = group
        self._drain_s = drain_s
        self._ingest = ingest
        self._dispatcher = dispatcher
        self._relay = relay
        self._pauser = pauser
        self._position = position
        self._clock = clock
        self._observer = observer
        self._subscription: Subscription | None = None
        self._committing: asyncio.Task[None] | None = None
        self._next = NextBatch(batch, ingest.understand)
        self._polling = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._blind: ConsumerError | None = None
        self._uncommitted: dict[Partition, int] = {}
        self._unpolled = Condition("poll_failed")
        self._untaken = Condition("batch_not_stored")
        self._unsaved = Condition("offsets_not_committed")

    @property
    def polls(self) -> bool:
        """Whether the worker has joined its group and takes records."""
        return self._polling.is_set()

    def check(self) -> bool:
        """Whether it takes records now; before it has joined its group it does not. Raises the error that keeps it
        from joining, reading, storing or committing: a worker that is refused must not seem idle."""
        if self._blind is not None:
            raise again(self._blind)
        return self.polls

    async def lag(self) -> Mapping[Partition, Lag]:
        """How far the group is behind in this worker's partitions; empty before it has joined. Raises BrokerError."""
        return await self._subscription.lag() if self._subscription is not None and self.polls else {}

    async def run(self, stop: asyncio.Event, over: Callable[[], None]) -> None:
        """Take what comes until `stop` is set; `over` is called before the group is left. Raises BrokerError that no
        waiting mends."""
        subscription = self._broker.subscribe(
            [self._topic],
            self._group,
            on_assigned=self._began,
            on_revoked=self._finish_batch,
            on_replaced=self._replaced,
            drain_s=self._drain_s,
        )
        self._subscription = subscription
        try:
            await self._join(subscription, stop)
            while not stop.is_set():
                await self._dispatcher.keeps_up(stop)
                await self._poll(subscription, stop)
        finally:
            over()
            self._polling.clear()
            await self._next.stop()
            try:
                await self._committed()
            finally:
                await subscription.stop(timeout_s=10)

    def wait_no_longer(self) -> None:
        """End the poll that is under way: `stop` is set."""
        self._next.wait_no_longer()

    async def _join(self, subscription: Subscription, stop: asyncio.Event) -> None:
        away = Condition("broker_not_ready")
        while not stop.is_set():
            try:
                await subscription.start()
                self._polling.set()
                self._blind = None
                away.over()
                return
            except BrokerError as error:
                if not error.retryable:
                    raise
                away.lasts(error)
                self._blind = error
                await rest(self._clock, 1, stop)

    async def _poll(self, subscription: Subscription, stop: asyncio.Event) -> None:
        """One round: poll, take, commit. Records whose offsets are not committed come again; that is harmless. So where
        the next batch is at hand, nobody waits for the commit of this one: it ends before the next one's begins."""
        try:
            records = await self._next.poll(subscription, until_tick(self._clock, POLL_S))
        except (BrokerError, LedgerError) as error:
            self._unpolled.lasts(error)
            self._blind = error
            await rest(self._clock, RETRY_MOST_S, stop)
            return
        if not records and stop.is_set():  # cut off: it tells nothing of the log
            await self._committed()
            return
        self._unpolled.over()
        if self._position.must_compare:
            records, _ = await self._that_follow(subscription, records, frozenset(), stop)
        if not records:
            await self._committed()
            if self._uncommitted:  # nothing more may come for long, and the group would seem to be behind
                self._start_commit(subscription)
                await self._committed()
            else:
                self._blind = None
            return
        self._idle.clear()
        self._next.read_ahead(subscription, until_tick(self._clock, POLL_S), behind=records)
        try:
            if stored := await self._take(subscription, records, stop):
                await self._committed()
                self._uncommitted |= next_offsets(stored)
                self._start_commit(subscription)
        finally:
            self._idle.set()
        if not self._next.is_at_hand:
            await self._committed()

    def _start_commit(self, subscription: Subscription) -> None:
        """From now on whoever waits for `_committed`, as who gives partitions up does, waits for this commit."""
        self._committing = asyncio.create_task(self._commit(subscription), name="work:commit")

    async def _commit(self, subscription: Subscription) -> None:
        """Whatever is not committed yet, what an earlier commit failed to do too."""
        kept_from = self._blind
        try:
            await subscription.commit(dict(self._uncommitted))
            self._uncommitted.clear()
            if self._blind is kept_from:  # nothing else has come up meanwhile
                self._blind = None
            self._unsaved.over()
        except BrokerError as error:
            self._unsaved.lasts(error)
            self._blind = error

    async def _committed(self) -> None:
        """Until no commit is under way."""
        if (committing := self._committing) is not None:
            await asyncio.wait({committing})
            committing.result()

    async def _that_follow(
        self, subscription: Subscription, records: Sequence[Record], behind: frozenset[Partition], stop: asyncio.Event
    ) -> tuple[Sequence[Record], frozenset[Partition]]:
        """Ledger and group are compared, for as long as it takes: which of the records in hand are the next ones, and
        in which of the partitions `behind` nothing lies between them and the ledger any more: those were read from
        where the ledger stands, and began behind it again."""
        uncompared = Condition("ledger_and_log_not_compared")
        await self._next.settled()
        await self._committed()  # else the group would soon be where it is no more
        while not stop.is_set():
            self._position.must_compare = False
            try:
                stands = await subscription.stands()
                back = await self._position.go_back(subscription, stands, behind)
            except ConsumerError as error:
                self._position.must_compare = True
                self._blind = error if isinstance(error, BrokerError) else self._blind
                uncompared.lasts(error)
                await rest(self._clock, RETRY_MOST_S, stop)
                continue
            uncompared.over()
            self._next.drop(back)
            self._forget(back)
            gone = back | (behind - stands.keys())  # set back, or another member's by now
            return [record for record in records if record.partition not in gone], behind - gone
        return [], frozenset()

    async def _take(
        self, subscription: Subscription, records: Sequence[Record], stop: asyncio.Event
    ) -> Sequence[Record]:
        """Store the records, for as long as it takes; returns those that were, none when told to stop before."""
        wait_s, loose = RETRY_FIRST_S, frozenset[Partition]()
        while records:
            try:
                began = self._clock.monotonic()
                taken = await self._ingest.take(records, loose=loose)
            except LedgerBehind as error:
                self._dispatcher.wake()  # singly, some may have been stored before
                behind = frozenset(Partition(*place) for place in error.places)
                records, more = await self._that_follow(subscription, records, behind, stop)
                await tell_lost(self._database, self._broker, self._group, self._topic, more, self._clock.now())
                loose |= more
            except ConsumerError as error:
                self._dispatcher.wake()  # the same; or it was stored, and the answer got lost
                self._untaken.lasts(error, records=len(records), retry_in_s=wait_s)
                if stop.is_set():
                    return []
                if wait_s > RETRY_FIRST_S:  # once may be a lock
                    self._blind = error
                await rest(self._clock, wait_s, stop)
                wait_s = min(wait_s * 2, RETRY_MOST_S)
            else:
                self._untaken.over()
                self._position.stored(records)
                self._after(taken, records, self._clock.monotonic() - began)
                return records
        return []

    def _after(self, taken: Taken, records: Sequence[Record], seconds: float) -> None:
        self._observer.batch(taken, records, seconds)
        self._pauser.taken(taken)
        self._dispatcher.take(taken.claimed)
        if taken.let_go or sum(run.status is RunStatus.RETRYING for run in taken.runs) > len(taken.claimed):
            self._dispatcher.wake()  # what is done, begun, or waits for another gives it nothing to look for
        if taken.emitted:
            self._relay.wake()

    async def _began(self, partitions: frozenset[Partition]) -> None:
        self._observer.moved("assigned", len(partitions))
        self._position.must_compare = True

    async def _replaced(self, partitions: frozenset[Partition]) -> None:
        """The log has lost the end of these, which were read: they are read from their beginning, and what lay there
        unread is made up for (`log_replaced`). Raises LedgerError: it is told again."""
        async with self._database.transaction() as session:
            await log_memory.note_replaced(session, self._topic, self._clock.now())
        numbers = sorted(one.number for one in partitions)
        _log.error("log_replaced", topic=self._topic, group=self._group, partitions=numbers)
        self._position.leaving(partitions)
        self._position.left(partitions)
        self._forget(partitions)
        self._position.must_compare = True

    async def _finish_batch(self, partitions: frozenset[Partition]) -> None:
        """Partitions are about to go: let the batch in hand be stored first, so that fewer records come twice."""
        self._observer.moved("revoked", len(partitions))
        self._next.drop(partitions)
        self._position.leaving(partitions)
        await self._idle.wait()
        self._position.left(partitions)
        await self._committed()
        self._forget(partitions)

    def _forget(self, partitions: Collection[Partition]) -> None:
        """These are read from further back, or by another member: what was stored of them is not committed any more."""
        for partition in partitions:
            self._uncommitted.pop(partition, None)
