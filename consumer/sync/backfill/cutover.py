"""Cut-over: up to when events are history, which a seed archives without effects, and from when on they are acted on.

Case B30. What the first walk of an application began with is kept for ever (decision 0004).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from consumer.errors import UsageError
from consumer.events import Event, parse_time
from consumer.sync.application import Application

FIRST_WALK: Final = "first_walk"


@dataclass(frozen=True, kw_only=True)
class CutOver:
    """A seed archives what happened before `at`. `is_first`: no walk of the role has begun here yet.
    `is_said`: an operator named the moment."""

    at: datetime
    is_first: bool
    is_said: bool = False

    def is_history(self, event: Event) -> bool:
        """Whether a seed may archive it. Without a time only where nothing has run yet. Pure."""
        return self.is_first if event.occurred_at is None else event.occurred_at < self.at

    def require_times(self, listed: tuple[Event, ...]) -> None:
        """Raises UsageError when a named moment divides nothing, because no event has a time."""
        if self.is_said and listed and all(event.occurred_at is None for event in listed):
            raise UsageError("--until cannot be applied: no listed event has a time that the locators find")


class FirstWalk:
    """When the first walk of an application began."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._began: datetime | None = None

    async def began(self) -> datetime | None:
        """None when there was none yet. Raises LedgerError."""
        if self._began is None:
            kept = await self._app.kept(FIRST_WALK)
            self._began = parse_time(kept.get("began")) if kept else None
        return self._began

    async def begin(self, began: datetime) -> datetime:
        """When it began: what is kept or, when nothing is, `began`, which is kept from now on. Raises LedgerError."""
        kept = await self.began()
        if kept is not None:
            return kept
        async with self._app.database.transaction() as session:
            await self._app.keep(session, FIRST_WALK, {"began": began.isoformat()})
        return began

    async def cut_over(self, until: datetime | None, now: datetime, history: timedelta) -> CutOver:
        """Where a seed that begins now ends: at `until`, else where the loop begins to act (`history` before its
        first walk) or, before that has ever run, now. Raises UsageError when `until` has not come yet."""
        if until is not None and until > now:
            raise UsageError("--until has not come yet: a seed archives what has happened")
        began = await self.began()
        at = until or (began - history if began is not None else now)
        return CutOver(at=at, is_first=began is None, is_said=until is not None)
