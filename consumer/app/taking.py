"""Taking: the role `work` notes up to where every request to fulfil was taken, so that one that nobody took is never
lost from sight (case O5)."""

from __future__ import annotations

import asyncio
from typing import Final

from consumer.clock import Clock, rest
from consumer.console import taken
from consumer.ledger import Database
from consumer.ledger.engine.database_time import shared_time
from consumer.telemetry.logs import Condition

LOOK_EVERY_S: Final = 15.0
REST_S: Final = 0.2
"""Between two full pages: live work comes first."""


async def note_taken(database: Database, clock: Clock, stop: asyncio.Event) -> None:
    """Move on as far as it goes, now and then, until `stop`."""
    unknown = Condition("taken_unknown")
    while not stop.is_set():
        wait_s = LOOK_EVERY_S
        try:
            if await move_on(database):
                wait_s = REST_S
        except Exception as error:  # noqa: BLE001 - what only looks ends no role, whatever it meets
            unknown.lasts(error)
        else:
            unknown.over()
        await rest(clock, wait_s, stop)


async def move_on(database: Database) -> bool:
    """By one page; whether there may be more. Raises LedgerError."""
    async with database.reading() as session:
        seq, more = await taken.further(session, await shared_time(session))
    if seq is not None:
        async with database.transaction() as session:
            await taken.keep(session, seq)
    return more
