"""Latecomers: what the canary misses is brought. An event is read by its id and published, whatever lost it, be it a
log whose unread records were deleted: the walk is past it, and would never look back. An order is asked for: nothing
tells of it, and what reconcile took for history when it came first is not published by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from consumer.ledger.reading import read_requests
from consumer.payments import Priority
from consumer.plugin import ReadRequest
from consumer.sync.api import shown
from consumer.sync.application import Application
from consumer.sync.canary.sightings import ORDER, id_of
from consumer.sync.provenance import as_read
from consumer.sync.settlement import Settlement

LOG = structlog.get_logger()

AT_ONCE: Final = 20
AGAIN_AFTER: Final = timedelta(hours=1)
"""Where a worker is away they wait in the log, and come from there: to publish one twice is harmless, and a waste."""


class Latecomers:
    """Those of one application: AT_ONCE at a time, each once in AGAIN_AFTER."""

    def __init__(self, app: Application, settlement: Settlement) -> None:
        self._app = app
        self._settlement = settlement
        self._events = app.client.with_priority(Priority.RECONCILE).events
        self._brought: dict[str, datetime] = {}

    async def bring(self, names: Sequence[str]) -> None:
        """Publish those of these events that the service shows, and ask for these orders. Raises PaymentsError,
        BrokerError, LedgerError."""
        now = self._app.clock.now()
        self._brought = {name: at for name, at in self._brought.items() if name in names and now - at < AGAIN_AFTER}
        wanted = [name for name in names if name not in self._brought][:AT_ONCE]
        await self._ask([id_of(name) for name in wanted if name.startswith(ORDER)], now)
        for name in wanted:
            if not name.startswith(ORDER) and await self._bring(id_of(name)):
                LOG.warning("late_event_brought", application=self._app.name, event_id=id_of(name))
            self._brought[name] = now

    async def _ask(self, order_ids: Sequence[str], now: datetime) -> None:
        if not order_ids:
            return
        async with self._app.database.transaction() as session:
            requests = [ReadRequest(kind="order", object_id=one) for one in order_ids]
            await read_requests.ask(session, self._app.name, requests, now)
        for one in order_ids:
            LOG.warning("late_order_asked_for", application=self._app.name, order_id=one)

    async def _bring(self, event_id: str) -> bool:
        """False for one that the service refuses to show, or that cannot be understood."""
        record = await shown(self._events.retrieve(event_id))
        if record is None:
            return False
        name, now, broke = self._app.name, self._app.clock.now(), "late_event_broke_its_reading"
        event = as_read(record.raw_bytes, self._app.locators, application=name, received_at=now, broke=broke)
        return event is not None and not await self._settlement.settle({}, [event])
