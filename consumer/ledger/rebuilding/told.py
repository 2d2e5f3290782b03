"""Told: ids of derived events, as many as there are. The newest are held in memory, the others in a table that this
transaction alone sees and that goes with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from sqlalchemy import Column, MetaData, String, Table, insert, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.schema import CreateTable, DropTable

from consumer.columns import among

HELD_MAX: Final = 10_000
_IDS: Final = Table("told_ids", MetaData(), Column("id", String(255), primary_key=True), prefixes=["TEMPORARY"])


class Told:
    """The ids that were told to it; each is told once. Until HELD_MAX of them there is no table. Not for use inside a
    savepoint that may be rolled back."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._has_table = False
        self.held: set[str] = set()

    async def add(self, ids: Iterable[str]) -> None:
        """These were told."""
        self.held.update(ids)
        if len(self.held) <= HELD_MAX:
            return
        if not self._has_table:
            await self._session.execute(CreateTable(_IDS))
            self._has_table = True
        await self._session.execute(insert(_IDS), [{"id": one} for one in self.held])
        self.held.clear()

    async def without(self, ids: Collection[str]) -> set[str]:
        """Those of these that were not told; a few at once."""
        unknown = set(ids) - self.held
        if unknown and self._has_table:
            unknown.difference_update(await self._session.scalars(select(_IDS.c.id).where(among(_IDS.c.id, unknown))))
        return unknown

    async def close(self) -> None:
        """The table goes before the transaction does: on SQLite it would stay with the connection."""
        if self._has_table:
            await self._session.execute(DropTable(_IDS))
            self._has_table = False
