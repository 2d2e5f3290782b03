"""Bring: an archive's bodies back into the ledger; or all it holds, into one that lacks it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from consumer.archive.file import read
from consumer.ledger import Database
from consumer.ledger.archiving import bodies
from consumer.ledger.archiving.bodies import Brought, Record

PORTION_BYTES: Final = 4 * 1024 * 1024
PORTION_RECORDS: Final = 200


async def bring(database: Database, path: Path, *, brings_missing: bool) -> Brought:
    """What a file holds comes in, portion by portion: done again, it goes on. It was looked at to its end before
    (`check`). Raises ArchiveInvalid, ArchiveForeign, LedgerError."""
    found = Brought()
    source = read(path)
    while portion := await asyncio.to_thread(_next, source):
        async with database.transaction() as session:
            found += await bodies.put_back(session, portion, brings_missing=brings_missing)
    return found


def check(path: Path) -> None:
    """Read a file to its end. Raises ArchiveInvalid when anything in it is not as it was written, or cannot come in."""
    for record in read(path):
        bodies.checked(record)


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
    return len(orjson.dumps(record))
