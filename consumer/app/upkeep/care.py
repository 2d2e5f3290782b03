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


async def take_care(worker: Worker, database: Database, clock: Clock, stop: asyncio.Event) -> None:
    """Look now and then, for this process's first minute, or until `stop`."""
    unknown = Condition("deaths_unknown", monotonic=clock.monotonic)
    singly = Condition("one_run_at_a_time", monotonic=clock.monotonic)
    until_s = clock.monotonic() + CARE_FOR_S
    while not stop.is_set() and clock.monotonic() < until_s:
        try:
            is_careful = await workers_die(database)
        except Exception as error:  # noqa: BLE001 - what only looks ends no role, whatever it meets
            unknown.lasts(error)
        else:
            unknown.over()
            worker.go_carefully(is_careful)
            singly.lasts("workers_die") if is_careful else singly.over()
        await rest(clock, until_tick(clock, LOOK_EVERY_S), stop)
    worker.go_carefully(False)
    singly.over()


async def workers_die(database: Database) -> bool:
    """Whether workers die soon after their start, and the last one did not say of what. Raises LedgerError."""
    async with database.reading() as session:
        found = loops(await processes.listed(session), await shared_time(session))
    return any(loop.role == "work" and processes.DIED not in loop.last.said for loop in found)
