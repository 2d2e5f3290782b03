"""Export: all events with their runs in archives, those too whose body lies in another; nothing is taken out."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from consumer.archive.filling import Filling, by_size
from consumer.archive.prune import FILE_BYTES, FILE_EVENTS, Pruned
from consumer.clock import Clock
from consumer.ledger import Database
from consumer.ledger.archiving import bodies
from consumer.ledger.archiving.bodies import Record
from consumer.ledger.archiving.observed import KINDS, observed
from consumer.ledger.archiving.quarantined import quarantined
from consumer.ledger.archiving.settled import stretch

UNSETTLED_AT_ONCE = 500
QUARANTINED_AT_ONCE = 20
"""Each has its body, which may be a megabyte."""


async def export(database: Database, folder: Path, *, clock: Clock, written_by: str) -> Pruned:
    """Write them, and last what is still to be sent or read, what lies in quarantine, what was last read, and how walks
    began; what was written.
    Raises ArchiveError, LedgerError."""
    done, after, is_over = Pruned(), 0, False
    while not is_over:
        file = Filling(folder, written_by=written_by, at=clock.now(), archived=True)
        try:
            while not is_over and file.events < FILE_EVENTS and file.bytes < FILE_BYTES:
                async with database.reading() as session:
                    part = await stretch(session, after, None)
                for portion in by_size(part.settled):
                    await file.add(database, portion)
                is_over, after = part.until is None, part.until or after
            if is_over:
                await _add_unsettled(file, database)
                await _add_quarantined(file, database)
                await _add_observed(file, database)
                await _add_first_walks(file, database, done.events + file.events)
            path = await file.finish()
        finally:
            await file.drop()
        if path is not None:
            done += Pruned(events=file.events, bytes=file.bytes, files=(path.name,))
    return done


async def _add_unsettled(file: Filling, database: Database) -> None:
    portion: list[Record] = []
    async with database.reading() as session:
        async for record in bodies.unsettled(session):
            portion.append(record)
            if len(portion) >= UNSETTLED_AT_ONCE:
                await file.add_records(portion)
                portion = []
    if portion:
        await file.add_records(portion)


async def _add_quarantined(file: Filling, database: Database) -> None:
    after: int | None = 0
    while after is not None:
        async with database.reading() as session:
            found, after = await quarantined(session, after, QUARANTINED_AT_ONCE)
        if found:
            await file.add_records(found)


async def _add_observed(file: Filling, database: Database) -> None:
    """Not of an application whose next walk is still to remember what was there before: it would act on a difference
    to what was read so far."""
    async with database.reading() as session:
        applications = await bodies.baselined(session)
    for application, kind in product(applications, KINDS):
        after: str | None = ""
        while after is not None:
            async with database.reading() as session:
                found, after = await observed(session, application, kind, after, UNSETTLED_AT_ONCE)
            if found:
                await file.add_records(found)


async def _add_first_walks(file: Filling, database: Database, events: int) -> None:
    async with database.reading() as session:
        found = await bodies.first_walks(session, events)
    if found:
        await file.add_records(found)
