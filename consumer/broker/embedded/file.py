"""LogFile: the SQLite file of the embedded log, a thread that writes, one that reads, one that watches; group commit.

Every piece of work is a plain function of a connection that runs to its end in one hop to a thread, so a cancelled
caller never leaves a transaction half open. Calls to `append` and `write` that arrive while a transaction is on its
way to the disk share the next one: that is what makes an acknowledged publish both durable and cheap.

A transaction begins only in the files that lie at the path. Where the write-ahead file or its index was removed, what
is in them goes into the log first, and all three connections are made anew.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import structlog

from consumer import sqlite_file
from consumer.broker.embedded.schema import SCHEMA, append_rows, data_version, give_room_back, take_room
from consumer.causes import is_for_want_of_room, of_disk, of_log_file
from consumer.clock import Clock, Pace, SystemClock
from consumer.errors import (
    BrokerError,
    BrokerUnavailable,
    LogDiskFull,
    LogIncompatible,
    LogNotOpened,
    LogReplaced,
    again,
)

T = TypeVar("T")
LOG = structlog.get_logger(__name__)

APPLICATION_ID = 0x70636C67
SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 4.0
WATCH_EVERY_S, WATCH_QUIET_S = 0.05, 0.2
"""Between two looks for what other processes wrote: while records come, and after two quiet seconds. A look takes a
tenth of a millisecond of CPU, most of it for waking up."""
WATCH_AT_ONCE_S = 1.0
WAL_SIZE_LIMIT_BYTES = 64 * 1024 * 1024
MAX_PENDING_BYTES = 64 * 1024 * 1024
TRANSACTION_MAX_JOBS = 2_000
TRANSACTION_MAX_BYTES = 16 * 1024 * 1024


class Row(NamedTuple):
    """One record to append; `headers` as `embedded_schema.pack_headers` made them."""

    partition_id: int
    key: bytes
    value: bytes
    headers: bytes | None
    published_ms: int


@dataclass(slots=True, eq=False)
class _Job:
    """What one caller waits for: rows to append, or a function to run; both inside the shared transaction."""

    done: asyncio.Future[Any]
    rows: Sequence[Row] = ()
    size_bytes: int = 0
    run: Callable[[sqlite3.Connection], Any] | None = None


def as_broker_error(error: sqlite3.Error, path: Path) -> BrokerError:
    """What an SQLite error means to a caller: damaged for good, or worth another try."""
    primary = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    reason = getattr(error, "sqlite_errorname", None) or str(error)
    if path.exists() and not path.is_file():  # a folder, as a mount that nobody made a file for: SQLite says I/O error
        return LogNotOpened(path=str(path), reason="it is no file")
    name = getattr(error, "sqlite_errorname", None)
    known = LogDiskFull if is_for_want_of_room(name, path) else of_log_file(name)
    if known is not None:
        return of_disk(known(path=str(path), reason=reason), path)
    if primary == sqlite3.SQLITE_ERROR:
        return BrokerError(f"the log file refused: {error}", path=str(path))
    return BrokerUnavailable("the log file does not take or give records now", path=str(path), reason=reason)


class LogFile:
    """The open file. `max_pending` jobs and MAX_PENDING_BYTES bound what waits for the disk. `clock`: the machine's,
    where none is given."""

    def __init__(
        self,
        path: Path,
        *,
        max_pending: int = 20_000,
        clock: Clock | None = None,
    ) -> None:
        self.path = path
        self._pace = Pace(clock or SystemClock(), first_s=WATCH_EVERY_S, most_s=WATCH_QUIET_S)
        self._max_pending = max_pending
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._watcher: sqlite3.Connection | None = None
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="log-write")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="log-read")
        self._watching = ThreadPoolExecutor(1, thread_name_prefix="log-watch")
        self._is_watched = False
        self._files: sqlite_file.Files | None = None
        self._is_left = False
        """What lay beside the file was removed: nobody reads or writes before all is closed and opened anew."""
        self._pending: deque[_Job] = deque()
        self._pending_bytes = 0
        self._flusher: asyncio.Task[None] | None = None
        self._closing = False
        self._write_failure: BrokerError | None = None
        self.lacks_bytes = 0
        """What was refused because the disk was full: the most at once, until that was proved to have room."""

    @property
    def write_failed(self) -> bool:
        """Whether the last transaction failed, or did not come to its end in time."""
        return self._write_failure is not None

    async def open(self) -> None:
        """Open or create the file. Raises BrokerUnavailable, LogCorrupt, LogIncompatible."""
        loop = asyncio.get_running_loop()
        self._writer = await loop.run_in_executor(self._writing, self._enter)
        self._reader = await loop.run_in_executor(self._reading, self._connect)

    async def close(self, timeout_s: float) -> None:
        """Write what is pending, bounded by `timeout_s`, and close. What did not get written fails for its caller."""
        self._closing = True
        deadline = time.monotonic() + timeout_s
        if self._flusher is not None:
            await asyncio.wait({self._flusher}, timeout=timeout_s)
            if not self._flusher.done():
                self._flusher.cancel()
        self._fail(self._pending, BrokerUnavailable("the log was closed before the record was written"))
        self._pending.clear()
        self._pending_bytes = 0
        # One after the other: the last to close folds the write-ahead log into the file, and of two that close at the
        # same moment each takes the other for one that still uses it.
        for executor, close in (
            (self._watching, self._end_watch if self._is_watched else None),
            (self._reading, None if self._reader is None else self._reader.close),
            (self._writing, None if self._writer is None else self._writer.close),
        ):
            if close is not None:
                closing = asyncio.get_running_loop().run_in_executor(executor, close)
                closed, _ = await asyncio.wait({closing}, timeout=max(deadline - time.monotonic(), 0.5))
                for found in closed:
                    found.exception()
            executor.shutdown(wait=False)
        self._watcher = self._reader = self._writer = None
        if self._files is not None:
            self._files.let_go()

    # --- what callers do -------------------------------------------------------------------------------------

    async def append(self, rows: Sequence[Row], size_bytes: int, timeout_s: float) -> None:
        """Return when the rows are on disk.

        Raises BrokerUnavailable after `timeout_s`, or at once when too much is pending already (case I22).
        """
        if len(self._pending) >= self._max_pending or self._pending_bytes + size_bytes > MAX_PENDING_BYTES:
            raise BrokerUnavailable("too much waits for the disk already", pending=len(self._pending))
        await self._done(_Job(asyncio.get_running_loop().create_future(), rows, size_bytes), timeout_s)

    async def write(self, run: Callable[[sqlite3.Connection], T], timeout_s: float) -> T:
        """Run `run` inside the next transaction and return what it returned, durable."""
        return cast(T, await self._done(_Job(asyncio.get_running_loop().create_future(), run=run), timeout_s))

    async def prove_room(self, timeout_s: float) -> None:
        """Write as much as was refused for want of room, durable, and delete it. Raises BrokerUnavailable while it is
        refused. A small write proves nothing: it may fit into what the file has already."""
        await self.write(partial(take_room, size_bytes=self.lacks_bytes), timeout_s)
        self.lacks_bytes = 0
        await self.write(give_room_back, timeout_s)

    async def read(self, run: Callable[[sqlite3.Connection], T], timeout_s: float = BUSY_TIMEOUT_S) -> T:
        """Run `run` on the reading connection."""
        reader = self._reader
        if self._closing or reader is None:
            raise BrokerUnavailable("the log is not open", path=str(self.path))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._reading, run, reader)
        except TimeoutError as error:
            raise BrokerUnavailable("the log file was not read in time", path=str(self.path)) from error
        except sqlite3.Error as error:
            raise as_broker_error(error, self.path) from error

    async def changed(self, seen: int) -> int:
        """The file's version, as soon as it is another than `seen`; the same one when that takes long. Whoever wrote,
        here or in another process. It is looked at in a thread of its own, which costs the loop nothing."""
        if self._closing or self._reader is None:
            raise BrokerUnavailable("the log is not open", path=str(self.path))
        self._is_watched = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._watching, self._watch, seen)
        except sqlite3.Error as error:
            raise as_broker_error(error, self.path) from error

    def stir(self) -> None:
        """Records came: for a while it is watched closely."""
        self._pace.stir()

    # --- group commit ----------------------------------------------------------------------------------------

    async def _done(self, job: _Job, timeout_s: float) -> Any:
        if self._closing or (self._writer is None and not self._is_left):
            raise BrokerUnavailable("the log is not open", path=str(self.path))
        loop = asyncio.get_running_loop()
        self._pending.append(job)
        self._pending_bytes += job.size_bytes
        if self._flusher is None or self._flusher.done():
            self._flusher = loop.create_task(self._flush())
        timer = loop.call_later(timeout_s, self._expire, job.done)
        try:
            return await job.done
        finally:
            timer.cancel()

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            jobs = self._take()
            if not jobs:
                continue
            try:
                if self._is_left:
                    await self._open_anew()
                results = await loop.run_in_executor(self._writing, self._transact, jobs)
            except sqlite3.Error as error:
                failure = as_broker_error(error, self.path)
                if isinstance(failure, LogDiskFull):
                    self.lacks_bytes = max(self.lacks_bytes, 1, *(job.size_bytes for job in jobs))
                self._fail(jobs, failure)
            except BrokerError as error:
                self._fail(jobs, error)
            except Exception as error:  # noqa: BLE001 - whatever it was, the callers must not wait for ever
                self._fail(jobs, BrokerError(f"the log could not write ({type(error).__name__}: {error})"))
            except asyncio.CancelledError:
                self._fail(jobs, BrokerUnavailable("the log was closed before the record was written"))
                raise
            else:
                self._write_failure = None
                for job, result in zip(jobs, results, strict=True):
                    if not job.done.done():
                        job.done.set_result(result)

    def _fail(self, jobs: Iterable[_Job], error: BrokerError) -> None:
        self._write_failure = error
        for job in jobs:
            if not job.done.done():
                job.done.set_exception(again(error))

    def _expire(self, done: asyncio.Future[Any]) -> None:
        """Who waits less long than SQLite does for a lock is told why the last one failed. That it waited in vain
        counts as a failed write until one succeeds."""
        if not done.done():
            self._write_failure = self._write_failure or BrokerUnavailable("the log file did not answer in time")
            done.set_exception(again(self._write_failure))

    def _take(self) -> list[_Job]:
        """The next transaction's jobs, without those whose caller has given up (fewer late duplicates)."""
        jobs: list[_Job] = []
        size = 0
        while self._pending and len(jobs) < TRANSACTION_MAX_JOBS and size < TRANSACTION_MAX_BYTES:
            job = self._pending.popleft()
            self._pending_bytes -= job.size_bytes
            if not job.done.done():
                jobs.append(job)
                size += job.size_bytes
        return jobs

    async def _open_anew(self) -> None:
        """Close all three, and only then open any: a process has one index of the file for all its connections. Raises
        BrokerError, and is called again by the next who writes."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._watching, self._end_watch)
        await loop.run_in_executor(self._reading, self._end_reading)
        self._writer = await loop.run_in_executor(self._writing, self._reconnect)
        self._reader = await loop.run_in_executor(self._reading, self._connect)
        self._is_left = False

    # --- in the threads --------------------------------------------------------------------------------------

    def _transact(self, jobs: list[_Job]) -> list[Any]:
        connection = self._writer
        if connection is None:
            raise BrokerUnavailable("the log is not open", path=str(self.path))
        self._check_identity()
        self._check_beside(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._check_beside(connection)
            append_rows(connection, [row for job in jobs for row in job.rows])
            results = [job.run(connection) if job.run is not None else None for job in jobs]
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        return results

    def _watch(self, seen: int) -> int:
        until = time.monotonic() + WATCH_AT_ONCE_S
        version = seen
        while version == seen and time.monotonic() < until and not self._closing:
            time.sleep(self._pace.wait_s)
            if self._is_left:
                continue
            self._watcher = self._watcher or self._looking()
            version = data_version(self._watcher)
        return version

    def _looking(self) -> sqlite3.Connection:
        """One that takes no lock and makes no file: who is stopped while it opens keeps nobody from writing."""
        address = f"{self.path.absolute().as_uri()}?mode=rw"
        return sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)

    def _end_watch(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()

    def _end_reading(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _reconnect(self) -> sqlite3.Connection:
        self._check_identity()  # before a file is made where none lies any more
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        found = self._connect()
        if self._files is not None:
            self._files.let_go()
        self._files = sqlite_file.Files(str(self.path))
        if not self._files.are_in_use():
            found.close()
            raise BrokerUnavailable("somebody here still has the log's removed files open", path=str(self.path))
        return found

    def _check_identity(self) -> None:
        """SQLite goes on writing to a file that was moved or deleted; nobody would find those records again."""
        if self._files is None or self._files.is_there():
            return
        how = "was replaced while it was open" if self.path.exists() else "is gone"
        raise LogReplaced(f"the log file {how}: restart this role", path=str(self.path))

    def _check_beside(self, connection: sqlite3.Connection) -> None:
        """Who has the lock writes alone: whoever finds a file gone comes after him, and puts away what he wrote."""
        if self._files is None or self._files.is_whole():
            return
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self._check_identity()
        self._files.fold(connection.cursor())
        self._is_left = True
        LOG.error("log_files_moved", path=str(self.path))
        raise BrokerUnavailable("what lay beside the log was moved: it is opened anew", path=str(self.path))

    def _enter(self) -> sqlite3.Connection:
        try:
            found, self._files = sqlite_file.entered(str(self.path), self._connect, BUSY_TIMEOUT_S)
        except sqlite3.Error as error:
            raise as_broker_error(error, self.path) from error
        return found

    def _connect(self) -> sqlite3.Connection:
        try:
            sqlite_file.make(self.path)
        except OSError as error:
            refused = LogNotOpened(path=str(self.path), reason=error.strerror)
            raise of_disk(refused, self.path) from error
        connection = None
        try:
            # Two threads in turn, never at once: opened in its executor's thread, closed there too.
            connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._prepare(connection)
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise as_broker_error(error, self.path) from error
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        sqlite_file.use_wal(connection, BUSY_TIMEOUT_S)
        # FULL: in WAL mode only this makes a commit survive power loss.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={WAL_SIZE_LIMIT_BYTES}")
        connection.execute("PRAGMA cache_size=-16384")
        connection.execute("BEGIN IMMEDIATE")
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (owner,) = connection.execute("PRAGMA application_id").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if tables and owner != APPLICATION_ID:
                raise LogIncompatible("the file is a database, but not a log", path=str(self.path))
            if version > SCHEMA_VERSION:
                raise LogIncompatible("the log was written by a newer version", path=str(self.path), version=version)
            if not tables:
                for statement in SCHEMA:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            _identify(connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise


def _identify(connection: sqlite3.Connection) -> None:
    """Give the file an identity of its own, once: another file at the same path is another log."""
    connection.execute("CREATE TABLE IF NOT EXISTS identity (id TEXT NOT NULL)")
    connection.execute("INSERT INTO identity SELECT ? WHERE NOT EXISTS (SELECT 1 FROM identity)", (uuid.uuid4().hex,))


def identity_of(connection: sqlite3.Connection) -> str | None:
    """The file's identity; None for one that no writer of this version has opened yet."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'identity'").fetchone() is None:
        return None
    found = connection.execute("SELECT id FROM identity").fetchone()
    return None if found is None else str(found[0])
