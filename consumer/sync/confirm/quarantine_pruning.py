"""Pruning of the quarantine: of what strangers sent the newest are kept, as much as is allowed (case I22)."""

from __future__ import annotations

from collections.abc import Collection

from consumer.clock import Clock
from consumer.ledger import Database
from consumer.ledger.reading import quarantine
from consumer.sync.confirm.policy import FLOOD_QUIET_S, PRUNE_EVERY_S, PRUNE_FOR_S, UNKNOWN
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import Metrics


class QuarantinePruning:
    """Keeps what is unproved in quarantine to `max_bytes` of each application. `is_overfull`: there is more still."""

    def __init__(
        self, database: Database, applications: Collection[str], *, clock: Clock, metrics: Metrics, max_bytes: int
    ) -> None:
        self._database = database
        self._applications = applications
        self._clock = clock
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._pruned_at = float("-inf")
        self.is_overfull = False
        self._full = {
            name: Condition("quarantine_pruned", monotonic=clock.monotonic, quiet_s=FLOOD_QUIET_S, application=name)
            for name in (*applications, UNKNOWN)
        }

    def lapse(self) -> None:
        """Say that it is over, where nothing was too much for a while."""
        for one in self._full.values():
            one.lapse()

    async def prune(self) -> None:
        """Now and then, and at once while there is too much, the oldest make room. Raises LedgerError."""
        began = self._clock.monotonic()
        if began - self._pruned_at < PRUNE_EVERY_S and not self.is_overfull:
            return
        self._pruned_at = began
        async with self._database.reading() as session:
            found = await quarantine.unproved_bytes(session)
        self.is_overfull = False
        for application, size in found.items():
            self._metrics.unproved_bytes.labels(self._known(application), "quarantine").set(size)
            if size > self._max_bytes:
                self.is_overfull |= not await self._pruned(application, size - self._max_bytes, began + PRUNE_FOR_S)

    async def _pruned(self, application: str, too_many_bytes: int, until: float) -> bool:
        """Whether so many bytes were forgotten before the time was over. Each step is a transaction of its own."""
        deliveries = 0
        while too_many_bytes > 0:
            async with self._database.transaction() as session:
                gone, freed = await quarantine.prune(session, application, too_many_bytes)
            deliveries += gone
            too_many_bytes -= freed
            if not gone or self._clock.monotonic() >= until:
                break
        self._full[self._known(application)].lasts("quarantine_pruned", deliveries=deliveries)
        return too_many_bytes <= 0

    def _known(self, application: str) -> str:
        return application if application in self._applications else UNKNOWN
