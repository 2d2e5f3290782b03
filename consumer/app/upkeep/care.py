"""Care: a worker that was started anew after others had died, and none said why, goes carefully at first, so that it
comes out which run it was (`work/dispatch/left_behind.py`). What the last one left behind is due again by then.
"""

from __future__ import annotations

import asyncio
from typing import Final

from consumer.clock import Clock, rest, until_tick
from consumer.console.alarms.lives import loops
from consumer.ledger import Database, processes
from consumer.ledger.engine.database_time import shared_time
from consumer.telemetry.logs import Condition
from consumer.work.worker import Worker

LOOK_EVERY_S: Final = 5.0
CARE_FOR_S: Final = 60.0
"""One run at a time is slow. Whoever lives for longer goes on as ever; if it dies of that, the next one is careful."""


class Care:
    """How a worker goes in its first minute."""

    def __init__(self, worker: Worker, database: Database, clock: Clock) -> None:
        self._worker = worker
        self._database = database
        self._clock = clock
        self._unknown = Condition("deaths_unknown", monotonic=clock.monotonic)
        self._singly = Condition("one_run_at_a_time", monotonic=clock.monotonic)

    async def look(self) -> None:
        """Go as workers have fared. To be awaited before the worker begins. Raises nothing."""
        with self._unknown.tried(Exception):  # what only looks ends no role, whatever it meets
            self._go(carefully=await workers_die(self._database))

    async def run(self, stop: asyncio.Event) -> None:
        """Look again now and then, until the minute is over or `stop`; from then on the worker goes as ever."""
        until_s = self._clock.monotonic() + CARE_FOR_S
        while not stop.is_set() and self._clock.monotonic() < until_s:
            await rest(self._clock, until_tick(self._clock, LOOK_EVERY_S), stop)
            await self.look()
        self._go(carefully=False)

    def _go(self, *, carefully: bool) -> None:
        self._worker.go_carefully(carefully)
        self._singly.lasts("workers_die") if carefully else self._singly.over()


async def workers_die(database: Database) -> bool:
    """Whether workers die soon after their start, and the last one did not say of what. Raises LedgerError."""
    async with database.reading() as session:
        found = loops(await processes.listed(session), await shared_time(session))
    return any(loop.role == "work" and processes.DIED not in loop.last.said for loop in found)
