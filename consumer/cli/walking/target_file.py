"""Target file: what a command writes to, named by who typed it: a plain file is replaced at once, another is written
to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EISDIR, ENOTSUP
from pathlib import Path
from typing import BinaryIO

from consumer.errors import UsageError


class TargetFile:
    """Where something goes, called `what` in errors. An older one stays whole until the new one is: it is replaced at
    once, or not; but in a folder where nothing else may be made it is written over. A link is followed. A device or a
    pipe is written to. A new one is its owner's alone, whatever the umask is; one that is there keeps its mode."""

    def __init__(self, file: Path, what: str = "file") -> None:
        """Raises UsageError when it cannot be written: at once, not when all is done."""
        self.path = file
        self._what = what
        if not file.parent.is_dir():
            raise UsageError(f"the {what} cannot be written: no such folder", file=str(file))
        try:
            self._is_plain = file.is_file() or not file.exists()
            if self._is_plain and _is_descriptor(file):
                raise OSError(ENOTSUP, "it leads to a plain file, which would be replaced: name that")
            self._file = file.resolve() if self._is_plain else file  # a pipe has no other name
            self.replaces = self._is_plain and self._file.exists() and self._file.stat().st_size > 0
            self._try()
        except (OSError, RuntimeError) as error:  # the latter of links that lead to each other
            raise self._unwritable(error) from error

    @contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        """What to write to; it is there, on the disk, when the block ends well. Raises UsageError."""
        try:
            if self._is_plain and self._can_make:
                with self._replaced() as target:
                    yield target
            else:  # a device, or a file whose folder is not ours: nothing goes beside it
                with self._file.open("wb") as target:
                    yield target
        except OSError as error:
            raise self._unwritable(error) from error

    def _try(self) -> None:
        """Open it for writing, and a file beside it, and leave all as it was."""
        self._can_make = False
        if not self._is_plain:
            if self._file.is_dir():  # which an empty name, `.` and `/` are, too
                raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
            if not os.access(self._file, os.W_OK):
                raise PermissionError(0, "not a file that can be written")
            return
        is_new = not self._file.exists()
        self._file.open("ab").close()
        if is_new:
            self._file.unlink()
            self._can_make = True
            return
        with suppress(OSError):
            beside = self._beside()
            beside.open("xb").close()
            beside.unlink()
            self._can_make = True

    @contextmanager
    def _replaced(self) -> Iterator[BinaryIO]:
        beside = self._beside()
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as target:
                yield target
                target.flush()
                os.fsync(descriptor)
            if self._file.exists():
                beside.chmod(self._file.stat().st_mode & 0o777)
            beside.replace(self._file)
        except BaseException:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise

    def _beside(self) -> Path:
        return self._file.with_name(f".consumer-{secrets.token_hex(8)}.tmp")

    def _unwritable(self, error: OSError | RuntimeError) -> UsageError:
        why = getattr(error, "strerror", None) or error
        return UsageError(f"the {self._what} cannot be written: {why}", file=str(self.path))


def _is_descriptor(file: Path) -> bool:
    """Whether it stands for what a process has open: `/dev/stdout`, `/dev/fd/3`."""
    folder = file.parent.resolve()
    return file.is_symlink() and (folder == Path("/dev") or folder.is_relative_to("/proc"))
