"""A file of SQLite's, as the ledger and the embedded log make theirs: nobody else reads it, and it is in WAL mode."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

TRY_AGAIN_S = 0.005


def make(path: Path) -> None:
    """Make the file, and its folders, before SQLite does, readable by its owner alone: it holds raw bodies.

    A file that is there is not opened: closing it would drop the locks that SQLite holds on it in this process, and the
    next process to leave would delete a write-ahead log that is still written to. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


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
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
        time.sleep(TRY_AGAIN_S)
