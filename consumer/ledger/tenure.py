"""Tenure: a role's lease as the process knows it that competes for it (case B26)."""

from __future__ import annotations

import asyncio

from consumer.clock import Clock
from consumer.errors import LeaseLost, LedgerUnavailable
from consumer.ledger import leases
from consumer.ledger.engine.database import Database
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.leases import Lease

SHORT = 0.9


class Tenure:
    """Takes, keeps and gives back the lease of one role.

    The lease in the ledger goes by the database's clock: a machine whose own is off would take over from the living,
    or leave behind a lease that ends in an hour. How long it is still good here is reckoned in seconds that passed
    since it was asked for, which no clock that is set can change. `holder` is unique per process and start.
    """

    def __init__(self, database: Database, *, role: str, holder: str, clock: Clock, lease_s: float) -> None:
        self.role = role
        self.lease_s = lease_s
        self._database = database
        self._holder = holder
        self._clock = clock
        self._lease: Lease | None = None
        self._good_until = 0.0

    @property
    def left_s(self) -> float:
        """Seconds for which this process holds the role for certain; 0 when another may hold it."""
        return 0.0 if self._lease is None else max(0.0, self._good_until - self._clock.monotonic())

    @property
    def holds(self) -> bool:
        """Whether this process holds the role now."""
        return self.left_s > 0

    @property
    def token(self) -> int:
        """The fencing token to store with what the role writes. Raises LeaseLost when another may hold it by now."""
        if self._lease is None or not self.holds:
            raise LeaseLost(role=self.role)
        return self._lease.token

    async def take(self, within_s: float | None = None) -> bool:
        """Take or renew the lease; False when another holds it.

        Raises LedgerError, LedgerUnavailable when the database does not answer in `within_s` (a third of the lease,
        where it is left out); what was held before is held on until it runs out.
        """
        asked_at = self._clock.monotonic()
        try:
            async with asyncio.timeout(within_s or self.lease_s / 3), self._database.transaction() as session:
                now = await shared_time(session)
                lease = await leases.acquire(session, self.role, self._holder, now, self.lease_s)
        except TimeoutError as error:
            raise LedgerUnavailable(reason="lease not had in time", role=self.role) from error
        self._lease = lease
        # Reckoned from before the request, and a little short: our time is over before the lease is.
        self._good_until = asked_at + self.lease_s * SHORT if lease else 0.0
        return lease is not None

    async def give_back(self) -> None:
        """Let another take over at once. Raises LedgerError as `take` does; then the lease runs out by itself."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            async with asyncio.timeout(self.lease_s / 3), self._database.transaction() as session:
                await leases.release(session, lease)
        except TimeoutError as error:
            raise LedgerUnavailable(reason="lease not given back in time", role=self.role) from error
