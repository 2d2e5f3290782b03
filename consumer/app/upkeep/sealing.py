"""Sealing: the audit trail's entries get their places in the chain a few seconds after they were committed."""

from __future__ import annotations

import asyncio

from consumer.clock import Clock, rest, until_tick
from consumer.errors import LedgerError
from consumer.ledger import Database
from consumer.ledger.trail import sealing
from consumer.telemetry.logs import Condition

LOOK_EVERY_S = 5.0
REST_S = 0.2
"""Between two full batches: live work comes first."""


async def seal_trail(database: Database, clock: Clock, stop: asyncio.Event) -> None:
    """Seal what was noted, until `stop`. Several processes may: they take turns."""
    unsealed = Condition("trail_not_sealed", monotonic=clock.monotonic)
    while not stop.is_set():
        wait_s = LOOK_EVERY_S
        with unsealed.tried(LedgerError):
            async with database.transaction() as session:
                if await sealing.seal(session) == sealing.BATCH:
                    wait_s = REST_S
        await rest(clock, until_tick(clock, wait_s), stop)
