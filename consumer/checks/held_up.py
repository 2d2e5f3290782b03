"""Held up: what keeps the `sync` that leads from reading, as the ledger has it, beside what is found from here: it may
run on another host, with other settings."""

from __future__ import annotations

from typing import Final

from consumer.checks.doctor import Check, Grade
from consumer.errors import LedgerError, LedgerLocked, WrongApplication
from consumer.ledger import Database, leases
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.processes import place_of
from consumer.payments import ServiceUnreachable
from consumer.runtime.loop import REFUSED
from consumer.sync.health.stalled import lasting, stalled_stages, told

OTHERWISE: Final = frozenset({ServiceUnreachable.code, WrongApplication.code})
"""What other settings may bring about, where the service takes those that are here."""


async def held_up(database: Database, application: str, *, accepted: bool) -> Check | None:
    """What holds the stages of this application up; None where nothing does for long. `accepted`: the service takes the
    credentials that are here (cases O3, B7, B26)."""
    try:
        async with database.reading() as session:
            now = await shared_time(session)
            noted, leader = (
                await stalled_stages(session, application, now),
                await leases.leader(session, application, now),
            )
        stages = [one for one in noted if one.code in REFUSED or one in lasting(noted, now)]
        codes = {one.code for one in stages}
        blocker = await database.who_blocks() if LedgerLocked.code in codes else None
    except LedgerError as error:
        return Check(name="sync", grade=Grade.WARN, text=error.line())
    if not stages:
        return None
    who = f"the `sync` that leads ({place_of(leader)})" if leader else "the `sync` that leads"
    text = f"{who} is {told(stages)}"
    if accepted and codes & REFUSED:
        text += "; the credentials are accepted here: give it these, and restart it"
    elif accepted and codes & OTHERWISE:
        text += "; the service answers here: compare its settings with these"
    if blocker is not None:
        text += f"; {blocker}"
    return Check(name="sync", grade=Grade.WARN, text=text)
