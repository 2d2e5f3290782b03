"""Taking: the role `work` notes up to where every request to fulfil was taken, so that one that nobody took is never
lost from sight (case O5); and asks the service again about an order whose answer got lost on its way here."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import groupby
from typing import Final

import structlog

from consumer.clock import Clock, rest
from consumer.console import taken
from consumer.console.unfulfilled import asked_in_vain
from consumer.ledger import Database
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.reading import read_requests
from consumer.plugin import ReadRequest
from consumer.telemetry.logs import Condition

_log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 15.0
LOST_AFTER: Final = timedelta(minutes=4)
ASKED_MOST: Final = 50
"""A look: the budget of calls is for those that never had an answer."""
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
            await ask_again(database)
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


async def ask_again(database: Database) -> None:
    """About orders whose answer was published LOST_AFTER ago and never came (cases F24, B28). Raises LedgerError."""
    async with database.reading() as session:
        now = await shared_time(session)
        lost = await asked_in_vain(session, now - LOST_AFTER, ASKED_MOST)
    for application, orders in groupby(lost, key=lambda one: one.application):
        requests = [ReadRequest(kind="order", object_id=one.order_id) for one in orders]
        async with database.transaction() as session:
            await read_requests.ask(session, application, requests, now)
        _log.warning("asked_again", application=application, orders=len(requests))
