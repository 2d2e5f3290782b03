"""SQLite's engine and driver, with one trip to its thread for a statement instead of four: cursor, execute, fetch and
close go together, and BEGIN with the first of them. A trip costs more than most statements do.

A result longer than `AT_ONCE` rows is fetched as it is asked for, so that a stream of a large table stays one.

SQLite goes on with a file that was moved, removed or replaced, while whoever connects then gets what lies at the path.
So a transaction begins only in the file that lies there: a role never writes into two ledgers. The same goes for the
two that lie beside it: whoever connects after one of them was removed knows nothing of what is in the old one, or of
who writes. So what is there goes into the file itself, and all connections are made anew.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import aiosqlite
import structlog
from aiosqlite.core import _connection_worker_thread
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from consumer import sqlite_file

AT_ONCE = 500
NOWHERE = ":memory:"
LEFT_WITHIN_S = 1.0
"""Who reads in files that are gone may himself wait for a new connection: then both are refused, and try again."""
POOL_TIMEOUT_S = 15.0

_log = structlog.get_logger(__name__)


class Cursor:
    """What SQLAlchemy's adapter asks of a cursor of `aiosqlite`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: sqlite3.Cursor | None = None
        self._rows: deque[Any] = deque()
        self.description: Any = None
        self.lastrowid: int | None = None
        self.arraysize = 1
        self._rowcount = -1

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        return self._rowcount if self._open is None else self._open.rowcount

    async def __aenter__(self) -> Cursor:
        return self

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Carry it out and fetch the first rows. Raises sqlite3.Error."""
        await self._connection.in_thread(self._executed, self._connection.sends(), sql, parameters)
        return self

    async def executemany(self, sql: str, parameters: Iterable[Sequence[Any]]) -> Cursor:
        """Carry it out for each of the parameters; it returns no rows. Raises sqlite3.Error."""
        await self._connection.in_thread(self._executed_many, self._connection.sends(), sql, parameters)
        return self

    async def fetchall(self) -> list[Any]:
        """The rest of the rows."""
        found = list(self._rows)
        self._rows.clear()
        if self._open is not None:
            found += await self._connection.in_thread(self._rest, self._open)
        return found

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next rows, at most so many."""
        wanted = size or self.arraysize
        if len(self._rows) < wanted and self._open is not None:
            await self._connection.in_thread(self._next, self._open, max(wanted, AT_ONCE))
        return [self._rows.popleft() for _ in range(min(wanted, len(self._rows)))]

    async def fetchone(self) -> Any:
        """The next row, or None."""
        found = await self.fetchmany(1)
        return found[0] if found else None

    async def close(self) -> None:
        """Let go what is not fetched yet."""
        self._rows.clear()
        if self._open is not None:
            await self._connection.in_thread(self._closed, self._open)

    # In the driver's thread.

    def _executed(self, begin: str, sql: str, parameters: Sequence[Any]) -> None:
        cursor = self._connection.cursor_in_thread(begin)
        cursor.execute(sql, parameters)
        self.description, self.lastrowid = cursor.description, cursor.lastrowid
        self._open = cursor
        self._next(cursor, AT_ONCE)

    def _next(self, cursor: sqlite3.Cursor, count: int) -> None:
        rows = cursor.fetchmany(count) if cursor.description else ()
        self._rows.extend(rows)
        if len(rows) < count:
            self._closed(cursor)

    def _rest(self, cursor: sqlite3.Cursor) -> list[Any]:
        rows = cursor.fetchall()
        self._closed(cursor)
        return rows

    def _executed_many(self, begin: str, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        cursor = self._connection.cursor_in_thread(begin)
        cursor.executemany(sql, parameters)
        self._closed(cursor)

    def _closed(self, cursor: sqlite3.Cursor) -> None:
        self._rowcount, self._open = cursor.rowcount, None
        cursor.close()


class Connection(aiosqlite.Connection):
    """A connection whose cursors need one trip for a statement."""

    _begin = ""
    _sent = False
    _file: sqlite_file.Files | None = None
    _is_left = False

    def begin_with_next(self, begin: str) -> None:
        """The next statement begins a transaction, so; without one there is none."""
        self._begin = begin

    def sends(self) -> str:
        """A statement goes to the thread: what begins its transaction, if it is the first. From here on there is
        something to end, even if who waits for it is cancelled before the thread has come to it."""
        begin, self._begin, self._sent = self._begin, "", True
        return begin

    async def rollback(self) -> None:
        """As the driver's; where nothing was sent there is nothing to undo, and no trip."""
        self._begin = ""
        if self._sent:
            if not self._is_left:
                await super().rollback()
            self._sent = False

    async def commit(self) -> None:
        """As the driver's; where nothing was sent there is nothing to keep, and no trip."""
        self._begin = ""
        if self._sent:
            await super().commit()
            self._sent = False

    def cursor(self) -> Cursor:  # type: ignore[override]  # the adapter enters what it gets, and this needs no thread
        """A cursor; nothing happens before it is used."""
        return Cursor(self)

    async def in_thread(self, function: Callable[..., Any], *given: Any) -> Any:
        """Call it where the connection lives. Raises what it raises, and ValueError when the connection is closed."""
        return await self._execute(function, *given)  # type: ignore[no-untyped-call]  # aiosqlite has no types for it

    def cursor_in_thread(self, begin: str) -> sqlite3.Cursor:
        """A cursor of SQLite's own, in a transaction that begins so, where it is to begin one. Raises FileMoved."""
        if self._is_left:
            raise FileMoved
        cursor = self._conn.cursor()
        if begin:
            self._require_whole(cursor)
            cursor.execute(begin)
            # Who writes has the lock from here on: nobody else finds that a file is gone, and puts away what is in it.
            self._require_whole(cursor)
        return cursor

    def _require_whole(self, cursor: sqlite3.Cursor) -> None:
        if self._file is None or self._file.is_whole():
            return
        if self._conn.in_transaction:
            cursor.execute("ROLLBACK")
        if self._file.is_there():
            self._file.fold(cursor)  # until then all is refused, and tried again
            _log.error("ledger_files_moved", path=self._file.path)
        raise FileMoved

    def opened(self, database: str, **given: Any) -> sqlite3.Connection:
        """Open the file; it is the one that this connection is of. Raises sqlite3.Error."""
        if database == NOWHERE:
            return _opened(database, **given)
        _await_those_before(database)
        opened, self._file = _entered(database, **given)
        with _OPEN_LOCK:
            _OPEN.add(self)
            _ENTERED.add(database)
        return opened

    async def close(self) -> None:
        """As the driver's. What was held to know the files by is let go: a disk with a removed file that somebody holds
        is not unmounted."""
        try:
            await super().close()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._file is not None and self._connection is None:
            self._file.let_go()

    def is_of_before(self, path: str) -> bool:
        """Whether it is open, and of files that lay at the path and are not there any more."""
        of = self._file
        is_open = self._connection is not None and not self._is_left
        return is_open and of is not None and of.path == path and not of.is_whole()

    def leave_soon(self) -> None:
        """Close it in its own thread, unless it is in a transaction, which may read to its end. What is in its
        write-ahead file is put away before."""
        self._tx.put_nowait((None, self._leave))

    def _leave(self) -> None:
        if self._connection is None or self._file is None or self._connection.in_transaction:
            return
        if self._file.is_there():
            self._file.fold(self._connection.cursor())
        self._connection.close()
        self._file.let_go()
        self._is_left = True


class _Opened(sqlite3.Connection):
    """Ends its transaction before it is closed: it stays open, and keeps its lock, for as long as somebody holds a
    cursor of it that has failed or was not read to its end, be it by a traceback."""

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self.rollback()
        super().close()


_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()
_ENTERED: set[str] = set()
"""Files that this process has had open: where it finds them moved, it has seen to what was in them, and goes on."""
_OPEN_LOCK = Lock()


def _those_before(path: str) -> list[Connection]:
    with _OPEN_LOCK:
        return [one for one in _OPEN if one.is_of_before(path)]


def _await_those_before(path: str) -> None:
    """In a process all connections share one index, and each has its own write-ahead file: none is opened beside those
    of files that are gone. Raises FileMoved."""
    until, told = time.monotonic() + LEFT_WITHIN_S, set[Connection]()
    while before := _those_before(path):
        if time.monotonic() >= until:
            raise FileMoved
        for one in before:
            if one not in told:
                told.add(one)
                one.leave_soon()
        time.sleep(sqlite_file.TRY_AGAIN_S)


class FileMoved(sqlite3.OperationalError):
    """The file was moved, removed or replaced since it was opened."""

    def __init__(self) -> None:
        # In words by which SQLAlchemy knows that none of its connections is any good.
        super().__init__("no active connection: the file was moved, removed or replaced")


def connection(database: str, **given: Any) -> Connection:
    """What `create_async_engine` connects with (`async_creator_fn`); to be awaited."""
    made = Connection(lambda: made.opened(database, **given), iter_chunk_size=AT_ONCE)
    # A daemon, as SQLAlchemy does with its own: a connection left behind keeps no process.
    made._thread = Thread(target=_served, args=(made._tx,), daemon=True)
    return made


def _served(statements: Any) -> None:
    """The driver's thread, until its connection ends, or the loop of those who wait for it: a command that could not
    open the file, or was broken off, is over before its thread is."""
    with suppress(RuntimeError):
        _connection_worker_thread(statements)


def _entered(database: str, *, timeout: float, **given: Any) -> tuple[sqlite3.Connection, sqlite_file.Files]:
    def connect() -> sqlite3.Connection:
        return _opened(database, timeout=timeout, **given)

    if database not in _ENTERED:
        return sqlite_file.entered(database, connect, timeout)
    opened, files = connect(), sqlite_file.Files(database)
    if not files.are_in_use():
        opened.close()
        files.let_go()
        raise FileMoved
    return opened, files


def _opened(database: str, *, timeout: float, **given: Any) -> sqlite3.Connection:
    # The file was made before, or has to be there: SQLite would make an empty one, which everybody may read.
    address = database if database == NOWHERE else f"{Path(database).absolute().as_uri()}?mode=rw"
    opened: sqlite3.Connection = sqlite3.connect(address, timeout=timeout, **{**given, "uri": True, "factory": _Opened})
    try:
        sqlite_file.use_wal(opened, timeout)
    except BaseException:
        opened.close()
        raise
    return opened


def engine(url: str, pool_size: int, *, durable: bool, lock_s: float) -> AsyncEngine:
    """An engine of this driver. `lock_s`: how long a statement waits for whoever holds the file's lock.
    `durable`: see `Database`."""
    # FULL: offsets are committed in another file, so a commit here must survive a power cut.
    synchronous = "FULL" if durable else "OFF"
    made = create_async_engine(
        url,
        pool_size=pool_size,
        pool_timeout=POOL_TIMEOUT_S,
        connect_args={"timeout": lock_s, "async_creator_fn": connection},
        hide_parameters=True,  # an error's text must not carry a body or a customer
    )

    @event.listens_for(made.sync_engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, below
        cursor = connection.cursor()
        for pragma in (f"synchronous={synchronous}", "foreign_keys=ON", "cache_size=-16000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(made.sync_engine, "invalidate")
    def give_up(connection: Any, _: Any, __: BaseException | None) -> None:
        _roll_back_soon(connection.driver_connection)

    @event.listens_for(made.sync_engine, "begin")
    def begin(connection: Any) -> None:
        # IMMEDIATE: a transaction that will write takes the lock first, so it can never fail half way with "locked".
        # That goes with its first statement in one trip: before it nothing was read or written.
        driver = connection.connection.driver_connection
        writes = connection.get_execution_options().get("consumer_writes", True)
        driver.begin_with_next("BEGIN IMMEDIATE" if writes else "BEGIN")

    return made


def _roll_back_soon(connection: Any) -> None:
    """Before a connection that was given up is closed: a cancelled task leaves a statement half way, and SQLite would
    keep the transaction's lock until that statement is collected, with every other writer shut out.

    It goes to the driver's thread ahead of the close and is not waited for: no second cancellation can stop it.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # the loop is gone, and the driver's thread with it
        return
    rollback = loop.create_task(connection.rollback())
    rollback.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # a closed one has nothing to undo
