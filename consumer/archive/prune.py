"""Prune: bodies of settled events go to archives, and leave the ledger once the archive was read back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import orjson

from consumer.archive.file import read
from consumer.archive.filling import Filling, by_size
from consumer.clock import Clock
from consumer.ledger import Database, audit
from consumer.ledger.archiving import bodies
from consumer.ledger.archiving.bodies import Body
from consumer.ledger.archiving.settled import Stretch, stretch
from consumer.ledger.handling.events import EventKey

T = TypeVar("T")

FILE_EVENTS: Final = 20_000
FILE_BYTES: Final = 256 * 1024 * 1024
REST_MAX_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What was taken out (or, looked at only, would be): events, the bytes of their bodies, the files they lie in now.
    `kept`: events that are old enough and still need their body."""

    events: int = 0
    bytes: int = 0
    kept: int = 0
    files: Sequence[str] = field(default=())

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(
            events=self.events + other.events,
            bytes=self.bytes + other.bytes,
            kept=self.kept + other.kept,
            files=(*self.files, *other.files),
        )


class Prune:
    """One pass over the ledger, in files of a bounded size. Killed anywhere, it has lost nothing: the next pass begins
    the last file again. It rests for as long as it works: live work goes first. `by`, `reason`: who is noted for it,
    and why. `may_go_on` raises when the lease is lost, before anything leaves."""

    def __init__(
        self,
        database: Database,
        folder: Path,
        *,
        clock: Clock,
        written_by: str,
        by: str,
        reason: str | None = None,
        may_go_on: Callable[[], object] = lambda: None,
        on_file: Callable[[Pruned], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._folder = folder
        self._clock = clock
        self._written_by = written_by
        self._by = by
        self._reason = reason
        self._may_go_on = may_go_on
        self._on_file = on_file

    async def look(self, before: datetime) -> Pruned:
        """What a pass would take out. Writes nothing."""
        found, after = Pruned(), 0
        while (part := await self._stretch(after, before)).until is not None:
            found += _of(part)
            after = part.until or 0
        return found

    async def run(self, before: datetime) -> Pruned:
        """Take out the bodies of settled events recorded before then. Raises ArchiveError, LedgerError; what lies in
        finished files stays done."""
        done, after = Pruned(), 0
        while True:
            async with self._database.transaction() as session:
                await bodies.require_no_replay(session)
            file = Filling(self._folder, written_by=self._written_by, at=self._clock.now())
            try:
                found, until = await self._fill(file, after, before)
                path = await file.finish()
            finally:
                await file.drop()
            if path is not None:
                taken = await self._take_out(path)
                done += Pruned(events=taken, bytes=found.bytes, files=(path.name,))
                self._on_file(done)
            done += Pruned(kept=found.kept)
            if until is None:
                return done
            after = until

    async def _fill(self, file: Filling, after: int, before: datetime) -> tuple[Pruned, int | None]:
        """What is in the file, and up to which number was looked; None: to the end."""
        found = Pruned()
        while file.events < FILE_EVENTS and file.bytes < FILE_BYTES:
            part = await self._gently(self._stretch(after, before))
            for portion in by_size(part.settled):
                await self._gently(file.add(self._database, portion))
            found += _of(part)
            if part.until is None:
                return found, None
            after = part.until
        return found, after

    async def _stretch(self, after: int, before: datetime) -> Stretch:
        async with self._database.reading() as session:
            return await stretch(session, after, before)

    async def _take_out(self, path: Path) -> int:
        """Only what was read back from the file, by the hash it has there. Raises ArchiveInvalid."""
        found = await asyncio.to_thread(verified, path)
        taken = 0
        for number, portion in enumerate(by_size(found)):
            self._may_go_on()
            hashes = {one.name: one.sha256 for one in portion if one.sha256 is not None}
            taken += await self._gently(self._take_portion(path.name, hashes, noted=None if number else len(found)))
        return taken

    async def _take_portion(self, archive: str, hashes: Mapping[EventKey, str], *, noted: int | None) -> int:
        """`noted`: so many bodies lie in the file. It is noted with the first that leaves: whoever is killed behind it
        has left no body that nobody is known to have taken out."""
        async with self._database.transaction() as session:
            if noted is not None:
                audit.note(
                    session,
                    at=self._clock.now(),
                    application="",
                    actor=self._by,
                    action="archive.written",
                    subject=f"archive:{archive}",
                    after=orjson.dumps({"bodies": noted}).decode(),
                    reason=self._reason,
                    code_version=self._written_by,
                )
            return await bodies.take_out(session, archive, hashes)

    async def _gently(self, work: Awaitable[T]) -> T:
        """Rest for as long as it took."""
        began = self._clock.monotonic()
        found = await work
        await self._clock.sleep(min(REST_MAX_S, self._clock.monotonic() - began))
        return found


def _of(part: Stretch) -> Pruned:
    return Pruned(events=len(part.settled), bytes=sum(one.bytes for one in part.settled), kept=part.kept)


def verified(path: Path) -> Sequence[Body]:
    """The bodies of an archive, once it was read to its end. Raises ArchiveInvalid."""
    return [one for record in read(path) if (one := bodies.checked(record)) is not None]
