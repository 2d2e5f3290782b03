"""Cut-over: up to when events are history, which a seed archives without effects, and from when on they are acted on.

Case B30. What the first walk of an application began with is kept for ever (decision 0004), and so is how much history
was left alone, until somebody has seen to all of it: a complete walk of the whole list, which archives it
(`--seed --full`) or has it acted on (`--full`). Nothing becomes history later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import UsageError
from consumer.events import Event
from consumer.ledger.reading.sync_state import FIRST_WALK, LEFT, SEEN_TO, KeptState
from consumer.sync.application import Application

HISTORY: Final = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Began(KeptState, walk=FIRST_WALK):
    """`began`: when the first walk did."""

    began: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Left(KeptState, walk=LEFT):
    """`events`: how much history a walk has left alone, at least."""

    events: int = 0


@dataclass(frozen=True, kw_only=True)
class SeenTo(KeptState, walk=SEEN_TO):
    """`at`: when somebody had seen to it. Nobody leads here: whoever walks the whole list writes it."""

    at: datetime | None = None


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
    """When the first walk of an application began. What was older than `history` then is history. `begins` is set when
    it does."""

    def __init__(self, app: Application, history: timedelta = HISTORY, begins: asyncio.Event | None = None) -> None:
        self._app = app
        self.history = history
        self._begins = begins or asyncio.Event()
        self._began: datetime | None = None

    async def began(self) -> datetime | None:
        """None when there was none yet. Raises LedgerError."""
        if self._began is None:
            self._began = (await self._app.kept(Began)).began
        return self._began

    async def begin(self, began: datetime) -> None:
        """It began then, unless it had begun before: that is kept from now on. Raises LedgerError."""
        if await self.began() is None:
            async with self._app.database.transaction() as session:
                await self._app.keep(session, Began(began=began))
            self._begins.set()

    async def floor(self) -> datetime | None:
        """From when on events are acted on; None before the first walk of all has begun. Raises LedgerError."""
        began = await self.began()
        return None if began is None else began - self.history

    async def cut_over(self, until: datetime | None, now: datetime) -> CutOver:
        """Where a seed that begins now ends: at `until`, else where the loop begins to act or, before that has ever
        run, now. Raises UsageError when `until` has not come yet."""
        if until is not None and until > now:
            raise UsageError("--until has not come yet: a seed archives what has happened")
        floor = await self.floor()
        return CutOver(at=until or floor or now, is_first=floor is None, is_said=until is not None)


async def left_alone(session: AsyncSession, application: str) -> int:
    """So many at least; 0 when there are none, or somebody has seen to them."""
    return 0 if await is_seen_to(session, application) else (await Left.of(session, application)).events


async def is_seen_to(session: AsyncSession, application: str) -> bool:
    """Whether somebody has archived, or acted on, all that was listed."""
    return (await SeenTo.of(session, application)).at is not None


async def note_left(session: AsyncSession, application: str, events: int, *, token: int, now: datetime) -> int:
    """A walk of the leader's left so many alone, or none; what `left_alone` says then. Raises LeaseLost."""
    if events > await left_alone(session, application):
        await Left(events=events).keep(session, application, token=token, now=now)
    return await left_alone(session, application)
