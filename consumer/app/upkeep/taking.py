"""Taking: the role `work` notes up to where every request to fulfil was taken, so that one that nobody took is never
lost from sight (case O5); and asks the service again about orders and subscriptions whose answer got lost on its way.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import structlog

from consumer.clock import Clock, rest, until_tick
from consumer.console.alarms import taken
from consumer.console.alarms.unread import asked_in_vain, unread_in_vain
from consumer.ledger import Database
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.reading import read_requests
from consumer.plugin import ReadKind, ReadRequest
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
        with unknown.tried(Exception):  # what only looks ends no role, whatever it meets
            if await move_on(database):
                wait_s = REST_S
            await ask_again(database)
        await rest(clock, until_tick(clock, wait_s), stop)


async def move_on(database: Database) -> bool:
    """By one page; whether there may be more. Raises LedgerError."""
    async with database.reading() as session:
        seq, more = await taken.further(session, await shared_time(session))
    if seq is not None:
        async with database.transaction() as session:
            await taken.keep(session, seq)
    return more


async def ask_again(database: Database) -> None:
    """About orders and subscriptions whose answer was published LOST_AFTER ago and never came (cases F24, B28, A14).
    Raises LedgerError."""
    async with database.reading() as session:
        now = await shared_time(session)
        lost: Mapping[ReadKind, Sequence[tuple[str, str]]] = {
            "order": await asked_in_vain(session, now - LOST_AFTER, ASKED_MOST),
            "subscription": await unread_in_vain(session, now - LOST_AFTER, ASKED_MOST),
        }
    again = defaultdict[str, list[ReadRequest]](list)
    for kind, keys in lost.items():
        for application, object_id in keys:
            again[application].append(ReadRequest(kind=kind, object_id=object_id))
    for application, requests in sorted(again.items()):
        async with database.transaction() as session:
            await read_requests.ask(session, application, requests, now)
        _log.warning("asked_again", application=application, reads=len(requests))
