"""Bring: an archive's bodies back into the ledger; or all it holds, into one that lacks it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from consumer.archive.file import read
from consumer.ledger import Database
from consumer.ledger.archiving import bodies
from consumer.ledger.archiving.bodies import Brought, Record

PORTION_BYTES: Final = 4 * 1024 * 1024
PORTION_RECORDS: Final = 200


async def bring(database: Database, path: Path, *, brings_missing: bool) -> Brought:
    """First the file is read to its end, then what it holds comes in, portion by portion: done again, it goes on.

    Raises ArchiveInvalid (nothing came in), ArchiveForeign, LedgerError.
    """
    await asyncio.to_thread(_check, path)
    found = Brought()
    source = read(path)
    while portion := await asyncio.to_thread(_next, source):
        async with database.transaction() as session:
            found += await bodies.put_back(session, portion, brings_missing=brings_missing)
    if brings_missing:
        async with database.transaction() as session:
            await bodies.go_on_counting(session)
    return found


def _check(path: Path) -> None:
    for record in read(path):
        if "event" in record:
            bodies.hashed(record)


def _next(source: Iterator[Any]) -> Sequence[Record]:
    """The next records, as many as memory is meant to hold."""
    portion, size = [], 0
    for record in islice(source, PORTION_RECORDS):
        portion.append(record)
        size += _size(record)
        if size > PORTION_BYTES:
            break
    return portion


def _size(record: Record) -> int:
    raw = record["event"]["raw"] if "event" in record else ""
    return len(raw if isinstance(raw, str) else raw["base64"])
