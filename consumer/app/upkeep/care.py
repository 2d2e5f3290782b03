"""Care: a worker that was started anew after others had died, and none said why, goes carefully, so that it comes out
which run it was (`work/dispatch/left_behind.py`). For as long as `status` tells of restarts, no longer.
"""

from __future__ import annotations

import asyncio
from typing import Final

from consumer.clock import Clock, rest, until_tick
from consumer.console.alarms.lives import STEADY_MAX, loops
from consumer.ledger import Database, processes
from consumer.ledger.engine.database_time import shared_time
from consumer.telemetry.logs import Condition
from consumer.work.worker import Worker

LOOK_EVERY_S: Final = 5.0


async def take_care(worker: Worker, database: Database, clock: Clock, stop: asyncio.Event) -> None:
    """Look now and then, until `stop`, or until this process has lived for so long that no restart is told."""
    unknown = Condition("deaths_unknown", monotonic=clock.monotonic)
    singly = Condition("one_run_at_a_time", monotonic=clock.monotonic)
    began_s, is_careful = clock.monotonic(), False
    while not stop.is_set() and (is_careful or clock.monotonic() - began_s <= STEADY_MAX.total_seconds()):
        try:
            found = await workers_die(database)
        except Exception as error:  # noqa: BLE001 - what only looks ends no role, whatever it meets
            unknown.lasts(error)
        else:
            unknown.over()
            is_careful = found
            worker.go_carefully(is_careful)
            singly.lasts("workers_die") if is_careful else singly.over()
        await rest(clock, until_tick(clock, LOOK_EVERY_S), stop)


async def workers_die(database: Database) -> bool:
    """Whether workers die soon after their start, and the last one did not say of what. Raises LedgerError."""
    async with database.reading() as session:
        found = loops(await processes.listed(session), await shared_time(session))
    return any(loop.role == "work" and processes.DIED not in loop.last.said for loop in found)
