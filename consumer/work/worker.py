"""Worker: the role `work`: poll, take, commit; run what is due; relay what was emitted; keep house; stop cleanly."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from consumer.broker.base import Broker, Lag, Partition, Record, Subscription
from consumer.clock import Clock
from consumer.errors import BrokerError, ConsumerError, LedgerError
from consumer.events import Locators
from consumer.ledger import Database
from consumer.ledger.handling import handlers, outbox, runs
from consumer.ledger.tables import RunStatus
from consumer.telemetry.loop_watch import Blocked, LoopWatch
from consumer.work.dispatch.breakers import Breakers
from consumer.work.dispatch.dispatcher import Runner
from consumer.work.dispatch.result_writer import Result
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor
from consumer.work.execution.loop_pool import LOST_AFTER_S, Harm, Loops
from consumer.work.execution.watchdog import CUTOFF_S, Cutoff
from consumer.work.ingest.ingest import Intake, Taken
from consumer.work.observer import Observer
from consumer.work.outbound.dead_letters import Letters
from consumer.work.outbound.relay import Relay
from consumer.work.pausing.pauser import Warden
from consumer.work.registry import Registry

POLL_S = 0.5
RETRY_FIRST_S = 0.2
RETRY_MOST_S = 5.0
HOUSEKEEPING_S = 1.0
RENEW_EVERY = 4

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
    batch: int = 500
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
        intake: Intake,
        runner: Runner,
        relay: Relay,
        letters: Letters,
        executor: Executor,
        breakers: Breakers,
        warden: Warden,
        cutoff: Cutoff,
        clock: Clock,
        observer: Observer,
        config: WorkerConfig,
        watch: LoopWatch | None = None,
    ) -> None:
        self._database = database
        self._broker = broker
        self._registry = registry
        self._intake = intake
        self._runner = runner
        self._relay = relay
        self._letters = letters
        self._executor = executor
        self._breakers = breakers
        self._warden = warden
        self._cutoff = cutoff
        self._watch = watch
        self._clock = clock
        self._observer = observer
        self._config = config
        self._subscription: Subscription | None = None
        self._polling = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._told_waiting: dict[str, bool] = {}
        warden.on_pause = self._pause_here

    @property
    def polls(self) -> bool:
        """Whether the worker has joined its group and takes records."""
        return self._polling.is_set()

    async def lag(self) -> Mapping[Partition, Lag]:
        """How far the group is behind in this worker's partitions; empty before it has joined. Raises BrokerError."""
        return await self._subscription.lag() if self._subscription is not None and self.polls else {}

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then drain within the configured time and leave the group."""
        await self._register()
        intake_over = asyncio.Event()
        if self._watch is not None:
            loop = asyncio.get_running_loop()
            self._watch.tell(lambda found: _call(loop, self._warden.blocked, found))
        try:
            async with self._cutoff.guarding(), asyncio.TaskGroup() as group:
                group.create_task(self._run_intake(stop, intake_over), name="work:intake")
                group.create_task(self._runner.run(intake_over, self._config.drain_s), name="work:runner")
                group.create_task(self._relay.run(intake_over), name="work:relay")
                group.create_task(self._letters.run(intake_over), name="work:letters")
                group.create_task(self._keep_house(intake_over), name="work:house")
        finally:
            await self._executor.loops.close()

    async def _register(self) -> None:
        while True:
            try:
                async with self._database.transaction() as session:
                    await handlers.register(session, self._registry.handlers, self._clock.now())
                    paused = await handlers.paused(session)
                self._honour(paused)  # before the first batch: it may hold what a handler was paused for
                return
            except LedgerError as error:
                if not error.retryable:
                    raise
                _log.warning("ledger_not_ready", code=error.code)
                await self._clock.sleep(RETRY_MOST_S)

    # --- intake ------------------------------------------------------------------------------------------------

    async def _run_intake(self, stop: asyncio.Event, over: asyncio.Event) -> None:
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
            self._letters.wake()
            self._polling.clear()
            await subscription.stop(timeout_s=10)

    async def _join(self, subscription: Subscription, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await subscription.start()
                self._polling.set()
                return
            except BrokerError as error:
                if not error.retryable:
                    raise
                _log.warning("broker_not_ready", code=error.code)
                await self._clock.sleep(1)

    async def _poll(self, subscription: Subscription, stop: asyncio.Event) -> None:
        """One round: poll, take, commit. Records whose offsets are not committed come again; that is harmless."""
        try:
            records = await subscription.poll(self._config.batch, POLL_S)
        except BrokerError as error:
            _log.warning("poll_failed", code=error.code)
            await self._clock.sleep(RETRY_MOST_S)
            return
        if not records:
            return
        self._idle.clear()
        try:
            if await self._take(records, stop):
                await subscription.commit(next_offsets(records))
        except BrokerError as error:
            _log.warning("offsets_not_committed", code=error.code)
        finally:
            self._idle.set()

    async def _take(self, records: Sequence[Record], stop: asyncio.Event) -> bool:
        """Store the records, for as long as it takes; False when told to stop before they were."""
        wait_s = RETRY_FIRST_S
        while True:
            try:
                began = self._clock.monotonic()
                taken = await self._intake.take(records)
            except ConsumerError as error:
                _log.warning("batch_not_stored", records=len(records), code=error.code, retry_in_s=wait_s)
                if stop.is_set():
                    return False
                await self._clock.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_MOST_S)
            else:
                self._after(taken, records, self._clock.monotonic() - began)
                return True

    def _after(self, taken: Taken, records: Sequence[Record], seconds: float) -> None:
        self._observer.batch(taken, records, seconds)
        self._warden.taken(taken)
        self._runner.wake()
        if taken.emitted:
            self._relay.wake()

    async def _began(self, partitions: frozenset[Partition]) -> None:
        self._observer.moved("assigned", len(partitions))

    async def _finish_batch(self, partitions: frozenset[Partition]) -> None:
        """Partitions are about to go: let the batch in hand be stored first, so that fewer records come twice."""
        self._observer.moved("revoked", len(partitions))
        await self._idle.wait()

    # --- housekeeping ------------------------------------------------------------------------------------------

    async def _keep_house(self, stop: asyncio.Event) -> None:
        round_number = 0
        while not stop.is_set():
            try:
                await self._tidy(renew=round_number % RENEW_EVERY == 0)
            except LedgerError as error:
                _log.warning("housekeeping_failed", code=error.code)
            round_number += 1
            try:
                async with asyncio.timeout(HOUSEKEEPING_S):
                    await stop.wait()
            except TimeoutError:
                continue

    async def _tidy(self, *, renew: bool) -> None:
        """Renew claims, honour pauses, let go what waits behind nothing."""
        if renew:
            await self._runner.renew_claims()
            async with self._database.transaction() as session:
                await handlers.register(session, self._registry.handlers, self._clock.now())
            await self._measure()
        self._warden.abandoned(self._executor.abandoned_by())
        await self._warden.store()
        await self._tell_waiting()
        async with self._database.reading() as session:
            paused = await handlers.paused(session) | self._warden.unstored
            stranded = await runs.has_stranded(session)
        self._honour(paused)
        self._observer.paused(paused, [handler.name for handler in self._registry.handlers])
        if stranded:
            async with self._database.transaction() as session:
                released = await runs.release_parked(session, self._clock.now())
            if released:
                self._runner.wake()

    def _honour(self, paused: frozenset[str]) -> None:
        for name in self._runner.paused - paused:
            self._warden.resumed(name)
            self._breakers.forget(name)
        if self._runner.paused - paused:
            self._runner.wake()
        self._intake.paused = self._runner.paused = paused

    def _pause_here(self, name: str) -> None:
        """At once; the ledger, and so the other workers, hear of it with the next housekeeping."""
        self._intake.paused = self._runner.paused = self._runner.paused | {name}

    async def _tell_waiting(self) -> None:
        """Write down which handlers wait for what they depend on, when that has changed."""
        waiting = self._breakers.open()
        told = {name: breaker.is_alone for name, breaker in waiting.items()}
        if told == self._told_waiting:
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
        try:
            self._observer.lag(await self.lag())
        except BrokerError as error:
            _log.warning("lag_unknown", code=error.code)


def worker_id() -> str:
    """A name for this process that no other has, at most 64 characters."""
    return f"{socket.gethostname()[:30]}-{os.getpid()}-{secrets.token_hex(4)}"


def build_worker(
    *,
    database: Database,
    broker: Broker,
    registry: Registry,
    contexts: Contexts,
    locators: Mapping[str, Locators],
    clock: Clock,
    observer: Observer,
    config: WorkerConfig,
    watch: LoopWatch | None = None,
    give_up: Callable[[str, str], None] | None = None,
) -> Worker:
    """Put a worker together; `locators` per application, `watch` on the loop it is going to run on, `give_up` (handler,
    reason) ends the process when a handler blocks it and cannot be cut off.
    """
    name = worker_id()
    warden = Warden(database=database, registry=registry, clock=clock, observer=observer, worker=name)
    executor = Executor(Loops(on_harm=warden.harm, lost_after_s=config.lost_after_s))
    breakers = Breakers(observer.breaker)
    relay = Relay(database=database, broker=broker, topic=config.topic, clock=clock, worker=name)
    letters = Letters(
        database=database,
        broker=broker,
        topic=config.dead_topic or f"{config.topic}.dead",
        clock=clock,
        leads=lambda: relay.leads,
    )

    def observe(result: Result) -> None:
        observer.run(result)
        warden.result(result)
        if result.finish.status is RunStatus.DEAD:
            letters.wake()

    intake = Intake(
        database=database,
        registry=registry,
        locators=locators,
        contexts=contexts,
        executor=executor,
        clock=clock,
        worker=name,
    )
    runner = Runner(
        database=database,
        registry=registry,
        contexts=contexts,
        executor=executor,
        breakers=breakers,
        clock=clock,
        worker=name,
        concurrency=config.concurrency,
        observe=observe,
        on_emitted=relay.wake,
    )

    def cut(harm: Harm) -> None:
        runner.go_singly(harm.handler)
        warden.cut(harm)

    return Worker(
        database=database,
        broker=broker,
        registry=registry,
        intake=intake,
        runner=runner,
        relay=relay,
        letters=letters,
        executor=executor,
        breakers=breakers,
        warden=warden,
        cutoff=Cutoff(config.cutoff_s, on_cut=cut, give_up=give_up),
        clock=clock,
        observer=observer,
        config=config,
        watch=watch,
    )


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[Blocked], None], found: Blocked) -> None:
    """From the watching thread onto the loop."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(what, found)


def next_offsets(records: Sequence[Record]) -> dict[Partition, int]:
    """Where to go on in each partition after these records."""
    return {record.partition: record.offset + 1 for record in records}
