"""The first walks of an application that begins: until they are over, what is there is history (case B30)."""

from __future__ import annotations

from consumer.ledger import Database
from consumer.lists.bookmark import Bookmark
from consumer.sync.reconcile.state import load_state


async def are_over(database: Database, application: str = "default") -> bool:
    """Whether the events were walked to their end, and what the lists held then is remembered: what is paid from now on
    is acted on, though no event tells of it."""
    async with database.reading() as session:
        walked_at = (await Bookmark.of(session, application)).walked_at
        state = await load_state(session, application)
    return walked_at is not None and state.began is not None and state.payments_baselined and not state.early
