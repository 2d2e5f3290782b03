"""File: an archive on the disk: written aside, made lasting, then given its name; read back, verified."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from consumer.archive.format import LINE_MAX_BYTES, Lines, records
from consumer.errors import ArchiveInvalid, ArchiveUnwritable

SUFFIX = ".jsonl.gz"
_GZIP = b"\x1f\x8b"


class ArchiveFile:
    """One archive while it is written; readable by its owner alone, since it holds what payers said of themselves."""

    def __init__(self, folder: Path, *, written_by: str) -> None:
        self._lines = Lines(written_by)
        self._aside = folder / f".part{SUFFIX}"  # one at a time writes there: a killed one's remains are in the way
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._aside.unlink(missing_ok=True)
            descriptor = os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file: BinaryIO = os.fdopen(descriptor, "wb")
            self._packed = gzip.GzipFile(filename="", fileobj=self._file, mode="wb", compresslevel=6)
            self._packed.write(self._lines.begin())
        except OSError as error:
            raise _unwritable(error) from error

    @property
    def count(self) -> int:
        """How many records it has."""
        return self._lines.count

    def write(self, found: Sequence[Mapping[str, Any]]) -> None:
        """Add records. Raises ArchiveUnwritable."""
        try:
            for one in found:
                self._packed.write(self._lines.record(one))
        except OSError as error:
            raise _unwritable(error) from error

    def finish(self, name: str) -> Path:
        """End it and give it its name, once it is on the disk. Raises ArchiveUnwritable."""
        path = self._folder / f"{name}{SUFFIX}"
        try:
            self._packed.write(self._lines.end())
            self._packed.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.link(self._aside, path)  # never over another
            self._aside.unlink()
            _sync_folder(self._folder)
        except OSError as error:
            raise _unwritable(error) from error
        return path

    def drop(self) -> None:
        """Leave nothing of one that was not finished."""
        with suppress(OSError):
            self._file.close()
            self._aside.unlink(missing_ok=True)


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    """The records of a file, packed or not; verified once it is read to its end. Raises ArchiveInvalid."""
    try:
        with path.open("rb") as file:
            is_packed = file.peek(2)[:2] == _GZIP
            source: Any = gzip.GzipFile(fileobj=file, mode="rb") if is_packed else file
            yield from records(_lines(source))
    except (OSError, EOFError) as error:
        raise ArchiveInvalid("the file cannot be read to its end", file=path.name, cause=_why(error)) from error


def _lines(source: Any) -> Iterable[bytes]:
    return iter(lambda: source.readline(LINE_MAX_BYTES), b"")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(error: OSError) -> ArchiveUnwritable:
    return ArchiveUnwritable(cause=_why(error))


def _why(error: OSError | EOFError) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
