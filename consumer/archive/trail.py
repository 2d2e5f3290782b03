"""Trail: an `audit export` into a ledger that has no trail yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from consumer.errors import ArchiveInvalid
from consumer.ledger import Database
from consumer.ledger.trail import importing
from consumer.ledger.trail.chain import FORMAT
from consumer.ledger.trail.verification import LINE_MAX, Verified, verified

AT_ONCE: Final = 500


def is_trail(path: Path) -> bool:
    """Whether a file begins as an `audit export` does."""
    try:
        with path.open("rb") as file:
            return FORMAT.encode() in file.readline(200)
    except OSError:
        return False


async def bring_trail(database: Database, path: Path) -> Verified:
    """All of it in one transaction, after it was verified. Raises ArchiveInvalid, ArchiveForeign, LedgerError."""
    try:
        found = await asyncio.to_thread(_verified, path)
        if found.fault is not None:
            raise ArchiveInvalid(f"not as it was written: {found.fault}", file=path.name)
        async with database.transaction() as session:
            if await importing.is_there(session, found.entries, found.hash):
                return found
            await importing.require_none(session)
            documents = _documents(path)
            while portion := await asyncio.to_thread(lambda: list(islice(documents, AT_ONCE))):
                entries = [one for one in portion if "hash" in one]
                plans = [one["plan"] for one in portion if "plan" in one]
                if entries:
                    await importing.take_entries(session, entries)
                if plans:
                    await importing.take_plans(session, plans)
            await importing.stand(session)
            await importing.go_on(session, found.entries, found.hash)
    except OSError as error:
        raise ArchiveInvalid("the file cannot be read", file=path.name, cause=error.strerror) from error
    return found


def _verified(path: Path) -> Verified:
    with path.open("rb") as file:
        return verified(_lines(file))


def _documents(path: Path) -> Iterator[Mapping[str, Any]]:
    """Its entries and plans."""
    with path.open("rb") as file:
        for line in _lines(file):
            document = orjson.loads(line)
            if "format" not in document and "end" not in document:
                yield document


def _lines(file: Any) -> Iterable[bytes]:
    return iter(lambda: file.readline(LINE_MAX), b"")
