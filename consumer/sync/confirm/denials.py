"""Denials: hints that the service did not confirm this time: looked at again, and quarantined when patience is over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import structlog

from consumer.ledger.engine.chunks import portions
from consumer.ledger.reading import hints
from consumer.reason import Reason
from consumer.sync.application import Application
from consumer.sync.confirm.decision import next_look_s
from consumer.sync.confirm.policy import FAILED_AGAIN_S
from consumer.sync.settlement import Settlement

LOG = structlog.get_logger()

CHUNK: Final = 500
BODIES: Final = 32
"""Deliveries whose bodies are in memory at once, a megabyte each at most."""


class Denials:
    """Stores the denials of one application's hints; `settlement` takes those whose patience is over."""

    def __init__(self, app: Application, settlement: Settlement, patience_s: float) -> None:
        self._app = app
        self._settlement = settlement
        self._patience_s = patience_s

    def is_last(self, denials: int) -> bool:
        """Whether another denial after so many ends patience."""
        return next_look_s(denials + 1, self._patience_s) is None

    async def store(self, denied: Mapping[str, int], reasons: Mapping[str, Reason] | None = None) -> int:
        """Count a denial of these hints (event id to the denials before it); returns how many went to quarantine."""
        by_attempts: defaultdict[int, list[str]] = defaultdict(list)
        for event_id, attempts in denied.items():
            by_attempts[attempts].append(event_id)
        over = 0
        for attempts, ids in sorted(by_attempts.items()):
            wait_s = next_look_s(attempts + 1, self._patience_s)
            for chunk in portions(ids, BODIES if wait_s is None else CHUNK):
                if wait_s is None:
                    over += await self._settlement.give_up(chunk, reasons or {})
                else:
                    await self._put_off(chunk, wait_s, counted=True)
        if over:
            self._app.metrics.confirmed.labels(self._app.name, "not_confirmed").inc(over)
            LOG.warning("deliveries_not_confirmed", application=self._app.name, deliveries=over)
        return over

    async def failed(self, ids: Sequence[str]) -> None:
        """The service did not answer for these very events: looked at again soon, nothing is counted (case G7)."""
        await self._put_off(ids, FAILED_AGAIN_S, counted=False)

    async def _put_off(self, ids: Sequence[str], wait_s: float, *, counted: bool) -> None:
        keys = [(self._app.name, event_id) for event_id in ids]
        async with self._app.database.transaction() as session:
            at = self._app.clock.now() + timedelta(seconds=wait_s)
            await hints.put_off(session, keys, at, counted=counted)
