"""Filling: events of the ledger, portion by portion into a file that begins with the first of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from consumer.archive.file import ArchiveFile
from consumer.ledger import Database
from consumer.ledger.archiving import bodies
from consumer.ledger.archiving.bodies import Body
from consumer.ledger.archiving.settled import Aged

Sized = TypeVar("Sized", Aged, Body)

PORTION_EVENTS: Final = 200
PORTION_BYTES: Final = 4 * 1024 * 1024


class Filling:
    """One file. `events`, `bytes`: what it holds so far; finished, it is named for the time and its events' numbers.
    `archived`: also events whose body lies in another archive."""

    def __init__(self, folder: Path, *, written_by: str, at: datetime, archived: bool = False) -> None:
        self._folder = folder
        self._written_by = written_by
        self._at = at
        self._archived = archived
        self._file: ArchiveFile | None = None
        self._first = self._last = 0
        self.events = self.bytes = 0

    async def add(self, database: Database, events: Sequence[Aged]) -> None:
        """Add a portion. Raises ArchiveUnwritable, LedgerError."""
        async with database.reading() as session:
            found = await bodies.records(session, [one.name for one in events], archived=self._archived)
        await self.add_records(found)
        self._first = self._first or events[0].seq
        self._last = events[-1].seq
        self.events += len(events)
        self.bytes += sum(one.bytes for one in events)

    async def add_records(self, found: Sequence[Mapping[str, Any]]) -> None:
        """Add records as they are. Raises ArchiveUnwritable."""
        if self._file is None:
            self._file = await asyncio.to_thread(ArchiveFile, self._folder, written_by=self._written_by, at=self._at)
        await asyncio.to_thread(self._file.write, found)

    async def finish(self) -> Path | None:
        """The file, once it is on the disk; None when nothing was added. Raises ArchiveUnwritable."""
        if self._file is None:
            return None
        name = f"events-{self._at:%Y%m%dT%H%M%S%fZ}-{self._first:012d}-{self._last:012d}"
        path = await asyncio.to_thread(self._file.finish, name)
        self._file = None
        return path

    async def drop(self) -> None:
        """Leave nothing of a file that was not finished."""
        if self._file is not None:
            await asyncio.to_thread(self._file.drop)


def by_size(events: Sequence[Sized]) -> Iterator[Sequence[Sized]]:
    """The same events, as many at once as memory, or a transaction, is meant to hold. Pure."""
    portion: list[Sized] = []
    size = 0
    for one in events:
        if portion and (len(portion) >= PORTION_EVENTS or size + one.bytes > PORTION_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(one)
        size += one.bytes
    if portion:
        yield portion
