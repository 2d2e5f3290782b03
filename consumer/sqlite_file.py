"""A file of SQLite's, as the ledger and the embedded log make theirs: nobody else reads it, and it is in WAL mode.

SQLite goes on with a file that was moved or removed, and so it does with the two that lie beside it, the write-ahead
file and its index: whoever connects after one of them was removed knows nothing of what is in the old one, or of who
writes. So who writes looks, once he has the lock, whether all three are those that he opened. If not, what is in them
goes into the file itself, and all connections are made anew. Who comes waits until nobody is left in removed ones: what
he would write beside them is lost, or the file is broken.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
import time
import weakref
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

TRY_AGAIN_S = 0.005
WAL, SHM = "-wal", "-shm"
OPEN_FILES = Path("/dev/fd")
LOCKS = Path("/proc/locks")
PROCESSES = Path("/proc")
LOCK_FIELDS = 8
"""Of a line of it: number, kind, how, what for, process, file, first byte, last byte. One who waits has one more."""


def make(path: Path) -> None:
    """Make the file, and its folders, before SQLite does, readable by its owner alone: it holds raw bodies.

    A file that is there is not opened: closing it would drop the locks that SQLite holds on it in this process, and the
    next process to leave would delete a write-ahead log that is still written to. Raises OSError.
    """
    _make_folder(path.parent)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _make_folder(folder: Path) -> None:
    """Raises OSError: of what is there and is none it says what it is, where the system says that it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        there = Path(error.filename)
        what = f"a symbolic link that leads nowhere ({there.readlink()})" if there.is_symlink() else "no folder"
        raise NotADirectoryError(errno.ENOTDIR, f"{there} is {what}", str(there)) from error


def fault_in(path: Path, timeout_s: float) -> str | None:
    """What is wrong first in the file, which is read whole; None: nothing. The file stays as it is: whoever opens one
    to write folds the write-ahead file beside it into it, which may be another's. Raises sqlite3.Error."""
    if not path.exists():
        return None
    address = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=timeout_s)) as connection:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    return None if found == "ok" else str(found)


def use_wal(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Put the file into WAL mode, which it keeps, within `timeout_s` seconds. Raises sqlite3.Error.

    SQLite's own timeout does not hold here: of several that open a new file at once, as roles that start together do,
    each reads before it writes, and SQLite answers BUSY at once rather than let them wait for each other.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").close()  # beside a new file this makes the two
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
        time.sleep(TRY_AGAIN_S)


def entered(path: str, connect: Callable[[], sqlite3.Connection], timeout_s: float) -> tuple[sqlite3.Connection, Files]:
    """A connection of a process that has none to this file yet, and the files it is of: those that lie there, and that
    all others use. Whoever is left in removed ones finds out within seconds, and leaves. Raises sqlite3.Error."""
    until = time.monotonic() + timeout_s
    while True:
        if not _are_others_elsewhere(path):
            connection, files = connect(), Files(path)
            if files.are_in_use() and not _are_others_elsewhere(path):
                return connection, files
            connection.close()
            files.let_go()
        if time.monotonic() >= until:
            raise _LeftBehind
        time.sleep(TRY_AGAIN_S)


class _LeftBehind(sqlite3.OperationalError):
    """As SQLite says that a file is locked."""

    sqlite_errorcode = sqlite3.SQLITE_BUSY
    sqlite_errorname = "SQLITE_BUSY"

    def __init__(self) -> None:
        super().__init__("database is locked: somebody still has removed files open that lay beside it")


def _are_others_elsewhere(path: str) -> bool:
    """Whether another process uses the file, and not both that lie beside it. False where nobody can tell: of other
    users' processes, of those in another container, and where there is no `/proc`."""
    beside = {_identity(path + WAL), _identity(path + SHM)}
    return any(None in beside or not beside <= (_open_in(one) or beside) for one in _others_in(path))


def _others_in(path: str) -> set[int]:
    """Other processes that hold a lock on the file, as each connection in WAL mode does for as long as it is open."""
    file = _identity(path)
    if file is None:
        return set()
    name = f"{os.major(file[0]):02x}:{os.minor(file[0]):02x}:{file[1]}"
    try:
        held = [line.split() for line in LOCKS.read_text().splitlines()]
    except OSError:
        return set()
    return {int(one[4]) for one in held if len(one) == LOCK_FIELDS and one[5] == name} - {os.getpid()}


def _open_in(process: int) -> set[tuple[int, int] | None]:
    """What a process has open; empty where that is not told."""
    descriptors = PROCESSES / str(process) / "fd"
    try:
        return {_identity(str(descriptors / name)) for name in os.listdir(descriptors)}  # noqa: PTH208 - names
    except OSError:
        return set()


class Files:
    """Which file lay at the path when it was opened, and which two beside it: the write-ahead file and its index."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._identities = self._there()
        self._log: int | None = None
        self._letting_go: Callable[[], object] | None = None
        self._hold_log()

    def _there(self) -> list[tuple[int, int] | None]:
        return [_identity(self.path + end) for end in ("", WAL, SHM)]

    def _hold_log(self) -> None:
        """To know later how much is in it."""
        self.let_go()
        with suppress(OSError):
            self._log = os.open(self.path + WAL, os.O_RDONLY | os.O_CLOEXEC)
            self._letting_go = weakref.finalize(self, os.close, self._log)

    def let_go(self) -> None:
        """Its connection is closed."""
        self._log = None
        if self._letting_go is not None:
            self._letting_go()

    def is_there(self) -> bool:
        """Whether the file itself lies there."""
        return _identity(self.path) == self._identities[0]

    def is_whole(self) -> bool:
        """Whether all three lie there. Beside a new file are none before the first transaction."""
        found = self._there()
        if None in self._identities[1:] and found[0] == self._identities[0]:
            self._identities = found
            self._hold_log()
        return found == self._identities

    def are_in_use(self) -> bool:
        """Whether this process has both open that lie there: they may have gone since it opened them. All its
        connections to a file share one index: a new one gets the removed one as long as an old one is open. True where
        nobody can tell."""
        try:
            held = {_identity(str(OPEN_FILES / name)) for name in os.listdir(OPEN_FILES)}  # noqa: PTH208 - names
        except OSError:
            return True
        return None not in self._identities and held.issuperset(self._identities)

    def _is_folded(self) -> bool:
        """Whether another process was here before, and goes on in new ones: where only one of the two is gone, what is
        there is used by both of us, and nothing fits together here any more."""
        if self._log is None:
            return False
        _, log, index = self._there()
        if log != self._identities[1]:
            return os.fstat(self._log).st_size == 0
        return index != self._identities[2] and self._is_put_away(self._log)

    def _is_put_away(self, log: int) -> bool:
        """What the index that is gone says of the write-ahead file that is there: all of it is in the file itself, or
        it was begun anew since. (SQLite's file format, 'WAL-Index Format'. It is read by SQLite's own descriptor: to
        close another one would drop SQLite's locks.)"""
        try:
            held = (int(name) for name in os.listdir(OPEN_FILES))  # noqa: PTH208 - names
            mine = next((one for one in held if _identity(str(OPEN_FILES / str(one))) == self._identities[2]), None)
            if mine is None:
                return False
            frames, salts, put_away = struct.unpack("=16xI12x8s56xI", os.pread(mine, 100, 0))
            return bool(put_away >= frames) or salts != os.pread(log, 8, 16)
        except (OSError, struct.error):
            return False

    def fold(self, cursor: sqlite3.Cursor) -> None:
        """What is in the old write-ahead file goes into the file itself, which is there. Raises sqlite3.Error.

        One that is gone is emptied, too: then who comes after, or leaves as the last, takes nothing out of it by the
        index of another. One that is there is left as it is: others may write to it by now.
        """
        if self._is_folded():
            return
        how = "FULL" if _identity(self.path + WAL) == self._identities[1] else "TRUNCATE"
        (is_busy, _, _) = cursor.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
        if is_busy:
            raise sqlite3.OperationalError("database is locked: its files are moved, and somebody still reads")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - three of them a transaction
    except OSError:
        return None
    return found.st_dev, found.st_ino
