"""Alone: what writes archives, brings them in, or derives tables again does so one process at a time (case B26)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from consumer.cli.walking.lead import COMMAND, SYNC, Led, Wait, lease_of, led_by
from consumer.clock import Clock, SystemClock
from consumer.errors import AnotherLeads
from consumer.ledger import Database
from consumer.ledger.leases import ARCHIVES, LEASE_S
from consumer.ledger.processes import place_of, worker_id
from consumer.runtime.leader import Leader

T = TypeVar("T")

RETENTION: Final = (
    "the daily retention of a `sync` ({place}) is under way; nothing was done here: try again when it is over, or stop "
    "that `sync` for it: nothing is lost"
)


def leader_of(database: Database, clock: Clock, word: str = COMMAND) -> Leader:
    """Who competes for that; `word`: what it does, as its lease says."""
    holds_file = database.dialect == "sqlite"
    return Leader(database, role=ARCHIVES, holder=f"{worker_id()}/{word}", clock=clock, holds_file=holds_file)


async def alone(
    database: Database, leader: Leader, say: Callable[[str], None], work: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """What the work answers, done under that lease; a killed one's is waited for. Raises AnotherLeads; LeaseLost, with
    the work cancelled."""
    wait = Wait(walk=lambda: leader.once(work), look=lambda: lease_of(database, ARCHIVES), clock=SystemClock(),
                say=say, lease_s=LEASE_S, served_by=())  # fmt: skip
    try:
        done = await wait.done()
    except AnotherLeads as error:
        lease = await lease_of(database, ARCHIVES)
        if lease is None or led_by(lease) != SYNC:
            raise
        raise AnotherLeads(RETENTION.format(place=place_of(lease.holder)), **error.fields) from error
    if isinstance(done, Led):
        raise AnotherLeads(done.line(), role=ARCHIVES)
    return done
