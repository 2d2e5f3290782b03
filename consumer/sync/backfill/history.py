"""History: how many events from before the first walk were left alone, until somebody has seen to all of them.

Case B30. A complete walk of the whole list sees to them for good: it archives them (`--seed --full`) or has them acted
on (`--full`). Nothing becomes history later.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.reading import sync_state

LEFT: Final = "history"
SEEN_TO: Final = "history_seen_to"  # a row among the bookmarks, of no leader: whoever walks the whole list writes it


async def left_alone(session: AsyncSession, application: str) -> int:
    """So many at least; 0 when there are none, or somebody has seen to them."""
    if await sync_state.load(session, application, SEEN_TO) is not None:
        return 0
    kept = await sync_state.load(session, application, LEFT) or {}
    return int(kept.get("events") or 0)


async def note_left(session: AsyncSession, application: str, events: int, *, token: int, now: datetime) -> int:
    """A walk of the leader's left so many alone, or none; what `left_alone` says then. Raises LeaseLost."""
    if events > await left_alone(session, application):
        await sync_state.keep(session, application, LEFT, {"events": events}, token=token, now=now)
    return await left_alone(session, application)


async def note_seen_to(session: AsyncSession, application: str, now: datetime) -> None:
    """The whole list was walked, and everything in it archived or acted on."""
    await sync_state.keep(session, application, SEEN_TO, {"at": now.isoformat()}, token=0, now=now)
