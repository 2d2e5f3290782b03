"""Heard: when the newest webhook came of an event that something else had brought before, for the outage sense (O1).

The events tell the rest: what a webhook brought first is recorded as its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import insert_into
from consumer.ledger.tables import BookmarkRow

_BOOKMARKS: Table = BookmarkRow.__table__
# A row among the bookmarks, of no walk and of no leader: any worker writes it, and only a later time.
WALK: Final = "heard"


async def note(session: AsyncSession, times: Mapping[str, datetime]) -> None:
    """Application to when a late webhook was received; an earlier time changes nothing.

    To be the last statement of a transaction: workers meet on these rows.
    """
    if not times:
        return
    insert = insert_into(_BOOKMARKS, session.get_bind().dialect.name)
    statement = insert.on_conflict_do_update(
        index_elements=["application", "walk"],
        set_={"updated_at": insert.excluded.updated_at},
        where=_BOOKMARKS.c.updated_at < insert.excluded.updated_at,
    )
    rows = [
        {"application": application, "walk": WALK, "token": 0, "state": b"{}", "updated_at": times[application]}
        for application in sorted(times)
    ]
    await session.execute(statement, rows)


async def last(session: AsyncSession, application: str) -> datetime | None:
    """When the newest one was received."""
    where = (_BOOKMARKS.c.application == application) & (_BOOKMARKS.c.walk == WALK)
    found: datetime | None = await session.scalar(select(_BOOKMARKS.c.updated_at).where(where))
    return found
