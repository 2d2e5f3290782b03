"""Worker: the role `work`: take what comes; run what is due; relay what was emitted; keep house; stop cleanly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from consumer.broker.base import Lag, Partition
from consumer.telemetry.loop_watch import Blocked, LoopWatch
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.execution.executor import Executor
from consumer.work.execution.loop_pool import LOST_AFTER_S
from consumer.work.execution.network import network_in_transaction
from consumer.work.execution.watchdog import CUTOFF_S, Watchdog
from consumer.work.ingest.ingest import Ingest
from consumer.work.outbound.dead_letters import DeadLetters
from consumer.work.outbound.relay import Relay
from consumer.work.pausing.pauser import Pauser
from consumer.work.rounds.backlog import Backlog
from consumer.work.rounds.housekeeping import Housekeeping
from consumer.work.rounds.poll_loop import PollLoop


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
        poll_loop: PollLoop,
        ingest: Ingest,
        dispatcher: Dispatcher,
        relay: Relay,
        dead_letters: DeadLetters,
        housekeeping: Housekeeping,
        backlog: Backlog,
        executor: Executor,
        pauser: Pauser,
        watchdog: Watchdog,
        drain_s: float,
        watch: LoopWatch | None = None,
    ) -> None:
        self._poll_loop = poll_loop
        self._ingest = ingest
        self._dispatcher = dispatcher
        self._relay = relay
        self._dead_letters = dead_letters
        self._housekeeping = housekeeping
        self._backlog = backlog
        self._executor = executor
        self._pauser = pauser
        self._watchdog = watchdog
        self._drain_s = drain_s
        self._watch = watch

    @property
    def polls(self) -> bool:
        """Whether the worker has joined its group and takes records."""
        return self._poll_loop.polls

    def check(self) -> bool:
        """Whether it takes records now. Raises what keeps it from that; see PollLoop."""
        return self._poll_loop.check()

    def go_carefully(self, is_careful: bool) -> None:
        """One run at a time, and none in a transaction that others share: workers die, and nobody knows of whom."""
        self._ingest.is_careful = self._dispatcher.is_careful = is_careful

    async def lag(self) -> Mapping[Partition, Lag]:
        """How far the group is behind in this worker's partitions; empty before it has joined. Raises BrokerError."""
        return await self._poll_loop.lag()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then drain within the configured time and leave the group."""
        await self._housekeeping.register(stop)
        if self._watch is not None:
            loop = asyncio.get_running_loop()
            self._watch.tell(lambda found: _call(loop, self._pauser.blocked, found))
        try:
            with network_in_transaction.told():
                await self._work(stop)
        finally:
            await self._executor.pool.close()

    async def _work(self, stop: asyncio.Event) -> None:
        over = asyncio.Event()

        def ingest_is_over() -> None:
            over.set()
            for part in (self._dispatcher, self._relay, self._dead_letters):
                part.wake()  # they wait for work, and shall see that it is over

        async with self._watchdog.guarding(), asyncio.TaskGroup() as group:
            group.create_task(self._heed(stop), name="work:stop")
            group.create_task(self._poll_loop.run(stop, ingest_is_over), name="work:ingest")
            group.create_task(self._dispatcher.run(over, self._drain_s), name="work:dispatcher")
            group.create_task(self._relay.run(over), name="work:relay")
            group.create_task(self._dead_letters.run(over), name="work:dead-letters")
            group.create_task(self._housekeeping.run(over), name="work:house")
            group.create_task(self._backlog.watch_log(over), name="work:lag")

    async def _heed(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._poll_loop.wait_no_longer()


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[Blocked], None], found: Blocked) -> None:
    """From the watching thread onto the loop."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(what, found)
