"""Backlog: how much waits, in the log, as runs and to go out, as metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from consumer.broker.base import Lag, Partition
from consumer.clock import Clock, is_set_within, until_tick
from consumer.errors import BrokerError
from consumer.ledger import Database
from consumer.ledger.handling import outbox, queue
from consumer.telemetry.logs import Condition
from consumer.work.observer import Observer

LOOK_EVERY_S = 4.0


class Backlog:
    """`lag` says how far this worker's group is behind; it raises BrokerError."""

    def __init__(
        self,
        *,
        database: Database,
        lag: Callable[[], Awaitable[Mapping[Partition, Lag]]],
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._database = database
        self._lag = lag
        self._clock = clock
        self._observer = observer
        self._unmeasured = Condition("lag_unknown")

    async def watch_log(self, stop: asyncio.Event) -> None:
        """By itself: a log that hangs holds no house up, and what waits must be seen while the ledger is away."""
        while not stop.is_set():
            await self.measure_log()
            await is_set_within(stop, until_tick(self._clock, LOOK_EVERY_S))

    async def measure_log(self) -> None:
        """What the log holds for this worker."""
        with self._unmeasured.tried(BrokerError):
            self._observer.lag(await self._lag())

    async def measure_ledger(self) -> None:
        """Runs by their status, and what waits to go out. Raises LedgerError."""
        now = self._clock.now()
        async with self._database.reading() as session:
            self._observer.runs(await queue.count_by_status(session))
            waiting, oldest = await outbox.waiting(session, now)
        self._observer.outbox(waiting, (now - oldest).total_seconds() if oldest else 0.0)
