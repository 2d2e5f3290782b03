"""Worker: the role `work`: poll, take, commit; run what is due; relay what was emitted; keep house; stop cleanly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from consumer.broker.base import Broker, Lag, Partition, Record, Subscription, next_offsets
from consumer.clock import Clock, Leaps, is_set_within, rest, until_tick
from consumer.errors import BrokerError, ConsumerError, LedgerBehind, LedgerError, again
from consumer.ledger import Database, log_positions
from consumer.ledger.handling import handlers, outbox, runs
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.reading import hints, read_requests
from consumer.ledger.tables import RunStatus
from consumer.telemetry.logs import Condition
from consumer.telemetry.loop_watch import Blocked, LoopWatch
from consumer.work.dispatch.breakers import Breakers
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.execution import network_in_transaction
from consumer.work.execution.executor import Executor
from consumer.work.execution.loop_pool import LOST_AFTER_S
from consumer.work.execution.watchdog import CUTOFF_S, Watchdog
from consumer.work.ingest.ingest import Ingest, Taken
from consumer.work.ingest.next_batch import NextBatch
from consumer.work.ingest.restored import note_restored, tell_lost
from consumer.work.ingest.rolling_deploy import LOOK_EVERY_S, brings_new
from consumer.work.observer import Observer
from consumer.work.outbound.dead_letters import DeadLetters
from consumer.work.outbound.relay import Relay
from consumer.work.pausing.pauser import Pauser
from consumer.work.registry import Registry

POLL_S = 1.0
RETRY_FIRST_S = 0.2
RETRY_MOST_S = 5.0
HOUSEKEEPING_S = 1.0
RENEW_EVERY = 4
SET_BACK = timedelta(seconds=30)
"""A clock that was ahead by more, and is right again, has put off what was to be done soon."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Bounds of one worker: records per transaction, runs at once, seconds to end cleanly.

    `dead_topic` is where dead letters are copied to, by default `topic` with `.dead` behind it. A handler's loop that
    is blocked for `lost_after_s` seconds after that was noticed is given up. A transactional handler that blocks the
    worker's own loop is cut off after `cutoff_s` seconds (0: never).
    """

    topic: str
    dead_topic: str = ""
    group: str = "work"
    batch: int = 200
    concurrency: int = 64
    drain_s: float = 20.0
    lost_after_s: float = LOST_AFTER_S
    cutoff_s: float = CUTOFF_S


class Worker:
    """One process's share of the work. Several may run: the broker's groups and the ledger keep them apart."""

    def __init__(
        self,
        *,
        database: Database,
        broker: Broker,
        registry: Registry,
        ingest: Ingest,
        dispatcher: Dispatcher,
        relay: Relay,
        dead_letters: DeadLetters,
        executor: Executor,
        breakers: Breakers,
        pauser: Pauser,
        watchdog: Watchdog,
        clock: Clock,
        observer: Observer,
        config: WorkerConfig,
        watch: LoopWatch | None = None,
    ) -> None:
        self._database = database
        self._broker = broker
        self._registry = registry
        self._ingest = ingest
        self._dispatcher = dispatcher
        self._relay = relay
        self._dead_letters = dead_letters
        self._executor = executor
        self._breakers = breakers
        self._pauser = pauser
        self._watchdog = watchdog
        self._watch = watch
        self._clock = clock
        self._observer = observer
        self._config = config
        self._subscription: Subscription | None = None
        self._committing: asyncio.Task[None] | None = None
        self._next = NextBatch(config.batch, ingest.understand)
        self._polling = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._told_waiting: dict[str, bool] = {}
        self._leaps, self._set_back = Leaps(clock), timedelta(0)
        self._looked_up_to: runs.Lane | None = None
        self._blind: ConsumerError | None = None
        self._uncommitted = False
        self._must_compare = False
        self._went_back: dict[Partition, int] = {}
        self._came_to: dict[Partition, int] = {}
        self._noted: Mapping[Partition, int] = {}
        self._unpolled = Condition("poll_failed")
        self._untaken = Condition("batch_not_stored")
        self._unsaved = Condition("offsets_not_committed")
        self._untidy = Condition("housekeeping_failed")
        self._unmeasured = Condition("lag_unknown")
        pauser.on_pause = self._pause_here

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

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then drain within the configured time and leave the group."""
        await self._register(stop)
        ingest_over = asyncio.Event()
        if self._watch is not None:
            loop = asyncio.get_running_loop()
            self._watch.tell(lambda found: _call(loop, self._pauser.blocked, found))
        try:
            with network_in_transaction.told():
                await self._work(stop, ingest_over)
        finally:
            await self._executor.pool.close()

    async def _work(self, stop: asyncio.Event, ingest_over: asyncio.Event) -> None:
        async with self._watchdog.guarding(), asyncio.TaskGroup() as group:
            group.create_task(self._heed(stop), name="work:stop")
            group.create_task(self._run_ingest(stop, ingest_over), name="work:ingest")
            group.create_task(self._dispatcher.run(ingest_over, self._config.drain_s), name="work:dispatcher")
            group.create_task(self._relay.run(ingest_over), name="work:relay")
            group.create_task(self._dead_letters.run(ingest_over), name="work:dead-letters")
            group.create_task(self._keep_house(ingest_over), name="work:house")
            group.create_task(self._watch_log(ingest_over), name="work:lag")

    async def _heed(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._next.wait_no_longer()

    async def _register(self, stop: asyncio.Event) -> None:
        away = Condition("ledger_not_ready")
        while not stop.is_set():
            try:
                async with self._database.transaction() as session:
                    now = self._clock.now()
                    is_news = brings_new(self._registry, await handlers.everyone(session), now)
                    await handlers.register(session, self._registry.handlers, now)
                    paused = await handlers.paused(session)
                self._honour(paused)  # before the first batch: it may hold what a handler was paused for
                if is_news:
                    await rest(self._clock, LOOK_EVERY_S, stop)  # until the others have looked
                away.over()
                return
            except LedgerError as error:
                if not error.retryable:
                    raise
                away.lasts(error)
                await rest(self._clock, RETRY_MOST_S, stop)

    # --- ingest ------------------------------------------------------------------------------------------------

    async def _run_ingest(self, stop: asyncio.Event, over: asyncio.Event) -> None:
        subscription = self._broker.subscribe(
            [self._config.topic],
            self._config.group,
            on_assigned=self._began,
            on_revoked=self._finish_batch,
            drain_s=self._config.drain_s,
        )
        self._subscription = subscription
        try:
            await self._join(subscription, stop)
            while not stop.is_set():
                await self._poll(subscription, stop)
        finally:
            over.set()
            for part in (self._dispatcher, self._relay, self._dead_letters):
                part.wake()  # they wait for work, and shall see that it is over
            self._polling.clear()
            await self._next.stop()
            try:
                await self._committed()
            finally:
                await subscription.stop(timeout_s=10)

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
        except BrokerError as error:
            self._unpolled.lasts(error)
            self._blind = error
            await rest(self._clock, RETRY_MOST_S, stop)
            return
        if not records and stop.is_set():  # cut off: it tells nothing of the log
            await self._committed()
            return
        self._unpolled.over()
        if self._must_compare:
            records, _ = await self._that_follow(subscription, records, frozenset(), stop)
        if not records:
            await self._committed()
            if not self._uncommitted:
                self._blind = None
            return
        self._idle.clear()
        self._next.read_ahead(subscription, until_tick(self._clock, POLL_S), behind=records)
        try:
            if stored := await self._take(subscription, records, stop):
                await self._committed()
                self._uncommitted = True
                self._committing = asyncio.create_task(self._commit(subscription, stored), name="work:commit")
        finally:
            self._idle.set()
        if not self._next.is_at_hand:
            await self._committed()

    async def _commit(self, subscription: Subscription, stored: Sequence[Record]) -> None:
        kept_from = self._blind
        try:
            await subscription.commit(next_offsets(stored))
            self._uncommitted = False
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
        while not stop.is_set():
            self._must_compare = False
            try:
                stands = await subscription.stands()
                back = await self._go_back(subscription, stands, behind)
            except ConsumerError as error:
                self._must_compare = True
                self._blind = error if isinstance(error, BrokerError) else self._blind
                uncompared.lasts(error)
                await rest(self._clock, RETRY_MOST_S, stop)
                continue
            uncompared.over()
            gone = back | (behind - stands.keys())  # set back, or another member's by now
            return [record for record in records if record.partition not in gone], behind - gone
        return [], frozenset()

    async def _go_back(
        self, subscription: Subscription, stands: Mapping[Partition, int], behind: frozenset[Partition]
    ) -> frozenset[Partition]:
        """Where the ledger stands before its group, it was restored from a backup: what it lacks is read again (case
        O7). So it was where a batch begins behind it, though the group's offsets may not tell: commits may have failed.
        A partition it has never read is noted, so that this holds for it too."""
        await self._committed()  # it would say that the group is where it is no more
        async with self._database.transaction() as session:
            places = await log_positions.load(session, [self._config.topic])
            new = {one: offset for one, offset in stands.items() if (one.topic, one.number) not in places}
            await log_positions.keep(session, _places(new))
            offsets = {Partition(*place): offset for place, offset in places.items()}
            older = {one: at for one, at in offsets.items() if at < stands.get(one, at)}
            if older != self._noted:
                note_restored(session, self._config.topic, older, stands, self._clock.now())
        self._noted = older
        behind |= {one for one, at in self._came_to.items() if offsets.get(one, at) < at}
        again = frozenset(one for one in behind if self._went_back.get(one) != offsets.get(one))
        back = await subscription.rewind(offsets, anyway=again)
        self._came_to = {one: offsets.get(one, at) for one, at in stands.items()}
        self._went_back |= {one: offsets[one] for one in back}
        self._next.drop(back)
        topic = self._config.topic
        looked_for = frozenset(one for one in back & again if one in stands and offsets[one] >= stands[one])
        if restored := back - looked_for:
            _log.error("ledger_restored", topic=topic, partitions=sorted(one.number for one in restored))
        if looked_for:
            _log.warning("log_read_again", topic=topic, partitions=sorted(one.number for one in looked_for))
        return back

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
                behind = frozenset(Partition(*place) for place in error.places)
                records, more = await self._that_follow(subscription, records, behind, stop)
                topic, group = self._config.topic, self._config.group
                await tell_lost(self._database, self._broker, group, topic, more, self._clock.now())
                loose |= more
            except ConsumerError as error:
                self._untaken.lasts(error, records=len(records), retry_in_s=wait_s)
                if stop.is_set():
                    return []
                if wait_s > RETRY_FIRST_S:  # once may be a lock
                    self._blind = error
                await rest(self._clock, wait_s, stop)
                wait_s = min(wait_s * 2, RETRY_MOST_S)
            else:
                self._untaken.over()
                self._came_to |= next_offsets(records)
                if self._went_back:
                    self._went_back = _without(self._went_back, (one.partition for one in records))
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
        self._must_compare = True

    async def _finish_batch(self, partitions: frozenset[Partition]) -> None:
        """Partitions are about to go: let the batch in hand be stored first, so that fewer records come twice."""
        self._observer.moved("revoked", len(partitions))
        self._next.drop(partitions)
        self._went_back = _without(self._went_back, partitions)
        await self._idle.wait()
        self._came_to = _without(self._came_to, partitions)
        await self._committed()

    # --- housekeeping ------------------------------------------------------------------------------------------

    async def _keep_house(self, stop: asyncio.Event) -> None:
        round_number = 0
        while not stop.is_set():
            try:
                await self._tidy(renew=(renews := round_number % RENEW_EVERY == 0))
                if renews:  # else little was written, if anything
                    self._untidy.over()
            except LedgerError as error:
                self._untidy.lasts(error)
            round_number += 1
            await is_set_within(stop, until_tick(self._clock, HOUSEKEEPING_S))

    async def _watch_log(self, stop: asyncio.Event) -> None:
        """By itself: a log that hangs holds no house up, and what waits must be seen while the ledger is away."""
        while not stop.is_set():
            await self._measure_log()
            await is_set_within(stop, until_tick(self._clock, HOUSEKEEPING_S * RENEW_EVERY))

    async def _tidy(self, *, renew: bool) -> None:
        """Renew claims, honour pauses, let go what waits behind nothing; see that the ledger stands where it stood."""
        if renew:
            await self._dispatcher.renew_claims()
            async with self._database.transaction() as session:
                await handlers.register(session, self._registry.handlers, self._clock.now())
                await handlers.waiting_is_over(session, answered := self._breakers.answered())
            self._breakers.noted(answered)
            await self._measure()
        await self._heed_clock()
        self._pauser.abandoned(self._executor.abandoned_by())
        await self._pauser.store()
        await self._tell_waiting(anew=renew)
        async with self._database.reading() as session:
            paused = await handlers.paused(session)
            parked = await runs.stranded(session, self._looked_up_to)
            if renew and await log_positions.behind(session, _places(self._came_to)):
                self._must_compare = True  # it failed over to an older copy: in a quiet partition no batch would tell
        paused |= self._pauser.unstored  # read last: one may have paused itself just now
        self._honour(paused)
        self._observer.paused(paused, [handler.name for handler in self._registry.handlers])
        self._looked_up_to = parked.after
        if parked.stranded:
            async with self._database.transaction() as session:
                released = await runs.release(session, parked, self._clock.now())
            if released:
                self._dispatcher.wake()

    async def _heed_clock(self) -> None:
        """What was put off by a clock that was ahead, and was set back, is due at once: it would wait for as long as
        the clock was wrong, and nobody would know why."""
        back = -self._leaps.since()
        if back > SET_BACK:
            self._set_back = max(self._set_back, back)
            _log.warning("clock_set_back", by_s=round(back.total_seconds()))
        if not self._set_back:
            return
        now, is_more = self._clock.now(), True
        async with self._database.transaction() as session:
            await outbox.after_set_back(session, now, now + self._set_back + SET_BACK)
            await read_requests.after_set_back(session, now)
            await hints.after_set_back(session, now)
        while is_more:
            async with self._database.transaction() as session:
                is_more = await runs.after_set_back(session, now, CLAIM_LEASE_S)
        self._set_back = timedelta(0)
        self._dispatcher.wake()

    def _honour(self, paused: frozenset[str]) -> None:
        for name in self._dispatcher.paused - paused:
            self._pauser.resumed(name)
            self._breakers.forget(name)
        if self._dispatcher.paused - paused:
            self._dispatcher.wake()
        self._ingest.paused = self._dispatcher.paused = paused

    def _pause_here(self, name: str) -> None:
        """At once; the ledger, and so the other workers, hear of it with the next housekeeping."""
        self._ingest.paused = self._dispatcher.paused = self._dispatcher.paused | {name}

    async def _tell_waiting(self, *, anew: bool) -> None:
        """Write down which handlers wait for what they depend on, when that has changed. `anew`: also what has not,
        as another worker may have taken it back."""
        waiting = self._breakers.open()
        told = {name: breaker.is_alone for name, breaker in waiting.items()}
        if told == self._told_waiting and not (anew and told):
            return
        async with self._database.transaction() as session:
            for name, breaker in waiting.items():
                await handlers.set_waiting(session, name, since=breaker.open_since, reason=breaker.explanation)
            for name in self._told_waiting.keys() - waiting.keys():
                await handlers.set_waiting(session, name, since=None, reason=None)
        self._told_waiting = told

    async def _measure(self) -> None:
        now = self._clock.now()
        async with self._database.reading() as session:
            self._observer.runs(await runs.count_by_status(session))
            waiting, oldest = await outbox.waiting(session, now)
        self._observer.outbox(waiting, (now - oldest).total_seconds() if oldest else 0.0)

    async def _measure_log(self) -> None:
        try:
            self._observer.lag(await self.lag())
            self._unmeasured.over()
        except BrokerError as error:
            self._unmeasured.lasts(error)


def _places(offsets: Mapping[Partition, int]) -> dict[log_positions.Place, int]:
    return {(one.topic, one.number): offset for one, offset in offsets.items()}


def _without(places: Mapping[Partition, int], partitions: Iterable[Partition]) -> dict[Partition, int]:
    gone = frozenset(partitions)
    return {one: offset for one, offset in places.items() if one not in gone}


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[Blocked], None], found: Blocked) -> None:
    """From the watching thread onto the loop."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(what, found)
