"""Late events: what the canary misses is read by its id and published. Whatever lost them, be it a log whose unread
records were deleted, they come by this: the walk is past them, and would never look back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from consumer.payments import PaymentsError, Priority
from consumer.sync.api import shown
from consumer.sync.application import Application
from consumer.sync.provenance import as_read
from consumer.sync.settlement import Settlement

LOG = structlog.get_logger()

AT_ONCE: Final = 5
"""So few that reading them before others, as the looks are, leaves those their room."""
AGAIN_AFTER: Final = timedelta(hours=1)
"""Where a worker is away they wait in the log, and come from there: to publish one twice is harmless, and a waste."""
FAILED_AGAIN_AFTER: Final = timedelta(minutes=1)
"""After so long the next try of one that could not be had: others take their turn meanwhile."""


class LateEvents:
    """Those of one application: AT_ONCE at a time, each once in AGAIN_AFTER; in FAILED_AGAIN_AFTER when that failed."""

    def __init__(self, app: Application, settlement: Settlement) -> None:
        self._app = app
        self._settlement = settlement
        self._events = app.client.with_priority(Priority.CONFIRM).events
        self._again_at: dict[str, datetime] = {}

    async def bring(self, ids: Sequence[str]) -> None:
        """Publish those of these that the service shows. One that cannot be read keeps no other waiting. Raises
        PaymentsError, BrokerError, LedgerError."""
        now, failures = self._app.clock.now(), list[PaymentsError]()
        self._again_at = {one: at for one, at in self._again_at.items() if one in ids and now < at}
        for event_id in [one for one in ids if one not in self._again_at][:AT_ONCE]:
            self._again_at[event_id] = now + FAILED_AGAIN_AFTER
            try:
                is_brought = await self._bring(event_id)
            except PaymentsError as error:
                failures.append(error)
                continue
            self._again_at[event_id] = now + AGAIN_AFTER
            if is_brought:
                LOG.warning("late_event_brought", application=self._app.name, event_id=event_id)
        if failures:
            raise failures[0]

    async def _bring(self, event_id: str) -> bool:
        """False for one that the service refuses to show, or that cannot be understood."""
        record = await shown(self._events.retrieve(event_id))
        if record is None:
            return False
        name, now, broke = self._app.name, self._app.clock.now(), "late_event_broke_its_reading"
        event = as_read(record.raw_bytes, self._app.locators, application=name, received_at=now, broke=broke)
        return event is not None and not (await self._settlement.settle({}, [event])).ids
