"""Lead: a walk of a command waits for the lead of its application, and tells who keeps it (case B26).

A process that was killed leaves its lease behind for some seconds: nobody walks then, and who gave up at once, content,
would have done nothing. Who leads is in the lease: a command's holder ends with a word of it (one of NAMES, or COMMAND
for the others), that of a `sync` does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from consumer.clock import Clock
from consumer.errors import AnotherLeads
from consumer.ledger import Database, leases
from consumer.ledger.leases import IMPORT, REBUILD, Lease

T = TypeVar("T")

POLL_S: Final = 1.0
SLACK_S: Final = 2.0
SYNC: Final = "sync"
BACKFILL: Final = "backfill"
COMMAND: Final = "command"
NAMES: Final = {
    SYNC: "a `sync` process", BACKFILL: "another `backfill`", IMPORT: "an `events import --missing`",
    REBUILD: "a `rebuild`",
}  # fmt: skip


@dataclass(frozen=True)
class Led:
    """Another process leads, lives, and does this work: `by` is SYNC or BACKFILL."""

    by: str

    def line(self) -> str:
        """What an operator is told."""
        walks = "and walks by itself; `consumer status` says how far" if self.by == SYNC else "and walks"
        return f"{NAMES[self.by]} leads {walks}; nothing was walked here"


@dataclass(frozen=True, kw_only=True)
class Wait(Generic[T]):
    """How a walk waits. `walk` raises AnotherLeads while another process leads. `lease_s`: how long a lease lasts.
    `served_by`: the leaders (SYNC, BACKFILL) that do the same work, so that it need not be done here."""

    walk: Callable[[], Awaitable[T]]
    look: Callable[[], Awaitable[Lease | None]]
    clock: Clock
    say: Callable[[str], None]
    lease_s: float
    served_by: Collection[str] = (SYNC, BACKFILL)

    async def done(self) -> T | Led:
        """What the walk answers once it has the lead; or who else does it, which has proved to be alive by renewing its
        lease. A `sync` is believed at once; a `backfill` is waited for, in case it ends.

        Waits a third longer than a dead process's lease can last, and for a `backfill` that long again at most. Raises
        AnotherLeads when the lead is kept by who does not do this work."""
        before: Lease | None = None
        began = self.clock.monotonic()
        patience_s = self.lease_s * 4 / 3 + SLACK_S
        while True:
            try:
                return await self.walk()
            except AnotherLeads as error:
                refused = error
            lease, waited_s = await self.look(), self.clock.monotonic() - began
            is_served = lease is not None and led_by(lease) in self.served_by
            most_s = 2 * patience_s if is_served else patience_s
            if lease is not None and before is None:
                self.say(f"{_name(lease)} has the lead ({lease.holder}); waiting up to {most_s:.0f} s")
            # One that was given back has changed, too: renewed is what lasts longer.
            is_alive = lease is not None and before is not None and lease.until > before.until
            if lease is not None and is_served and is_alive and (led_by(lease) == SYNC or waited_s >= patience_s):
                return Led(led_by(lease))
            if waited_s >= most_s:
                raise AnotherLeads(
                    f"{_name(lease)} keeps the lead; nothing was done here, and nobody else does it: try again later",
                    **refused.fields,
                ) from refused
            before = lease or before
            await self.clock.sleep(POLL_S)


def led_by(lease: Lease) -> str:
    """SYNC, or the command that a holder is. Pure."""
    _, slash, command = lease.holder.rpartition("/")
    return command if slash else SYNC


async def lease_of(database: Database, role: str) -> Lease | None:
    """See `leases.current`. Raises LedgerError."""
    async with database.reading() as session:
        return await leases.current(session, role)


def _name(lease: Lease | None) -> str:
    return "another process" if lease is None else NAMES.get(led_by(lease), "another command")
