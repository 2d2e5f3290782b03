"""File: an archive on the disk: written aside, made lasting, then given its name; read back, verified."""

from __future__ import annotations

import errno
import gzip
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from consumer.archive.format import LINE_MAX_BYTES, Lines, head, records
from consumer.errors import ArchiveInvalid, ArchiveUnwritable

SUFFIX = ".jsonl.gz"
REMAINS_S = 86400.0
_GZIP = b"\x1f\x8b"
_GZIP_WBITS = 16 + zlib.MAX_WBITS
_NO_RENAME = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EXDEV, errno.EINVAL})
_NO_SYNC = frozenset({errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
"""What a volume answers that has no such thing."""


class ArchiveFile:
    """One archive while it is written; readable by its owner alone, since it holds what payers said of themselves."""

    def __init__(self, folder: Path, *, written_by: str, at: datetime) -> None:
        self._lines = Lines(written_by, at)
        self._aside = folder / f".part-{secrets.token_hex(8)}{SUFFIX}"
        self._folder = folder
        # Not a `GzipFile`: one that ends with its disk full tries again when it is collected, and Python tells of that.
        self._packer = zlib.compressobj(level=6, wbits=_GZIP_WBITS)
        try:
            if not folder.exists():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _sync_folder(folder.parent)
            _sweep(folder)
            descriptor = os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file: BinaryIO = os.fdopen(descriptor, "wb")
            self._add(self._lines.begin())
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
                self._add(self._lines.record(one))
        except OSError as error:
            raise _unwritable(error) from error

    def finish(self, name: str) -> Path:
        """End it and give it its name, once it is on the disk. Raises ArchiveUnwritable."""
        path = self._folder / f"{name}{SUFFIX}"
        try:
            self._add(self._lines.end())
            self._file.write(self._packer.flush())
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            _give_name(self._aside, path)
            _sync_folder(self._folder)
        except OSError as error:
            raise _unwritable(error) from error
        return path

    def drop(self) -> None:
        """Leave nothing of one that was not finished."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._aside.unlink(missing_ok=True)

    def _add(self, line: bytes) -> None:
        self._file.write(self._packer.compress(line))


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    """The records of a file, packed or not; verified once it is read to its end. Raises ArchiveInvalid."""
    with _opened(path) as source:
        yield from records(_lines(source))


def written_at(path: Path) -> str:
    """When an archive was written, as its head says. Raises ArchiveInvalid."""
    with _opened(path) as source:
        return head(source.readline(LINE_MAX_BYTES))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as file:
            yield gzip.GzipFile(fileobj=file, mode="rb") if file.peek(2)[:2] == _GZIP else file
    except (OSError, EOFError, zlib.error) as error:
        raise ArchiveInvalid("the file cannot be read to its end", file=path.name, cause=_why(error)) from error


def _lines(source: Any) -> Iterable[bytes]:
    return iter(lambda: source.readline(LINE_MAX_BYTES), b"")


def _sweep(folder: Path) -> None:
    """Remains of a process that was killed: nobody writes a file for a day."""
    for path in folder.glob(f".part-*{SUFFIX}"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - REMAINS_S:
                path.unlink()


def _give_name(aside: Path, path: Path) -> None:
    """Where the volume renames nothing (a bucket that is mounted), it is written once more, under its name. Half of it
    may be left there by a kill; then it has no end, is refused when it is read, and no body left for it."""
    try:
        aside.rename(path)
    except OSError as error:
        if error.errno not in _NO_RENAME:
            raise
        _copy(aside, path)
        aside.unlink()


def _copy(aside: Path, path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with aside.open("rb") as source, os.fdopen(descriptor, "wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    """Make names last, where a volume keeps them apart from its files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def _unwritable(error: OSError) -> ArchiveUnwritable:
    return ArchiveUnwritable(cause=_why(error))


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
