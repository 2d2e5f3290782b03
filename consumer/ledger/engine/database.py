"""Database: the engine, and the two ways to use it: `transaction` (writes, all or nothing) and `reading`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from sqlalchemy import event, text
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlmodel import SQLModel

from consumer import sqlite_file
from consumer.causes import is_for_want_of_room, of_database, of_disk
from consumer.errors import (
    DatabaseMissing,
    LedgerAwaitsReplica,
    LedgerCorrupt,
    LedgerDiskFull,
    LedgerError,
    LedgerLocked,
    LedgerNotOpened,
    LedgerUnavailable,
    SchemaOutdated,
    SettingsError,
)
from consumer.ledger import postgresql_driver, sqlite_driver
from consumer.loan import LentSession, see_to_commit, see_to_statement

BUSY_TIMEOUT_S = 15.0
POOL_SIZE = 10
HELD_MOST = 4
"""So many connections handlers may hold at once, for as long as they like, apart from a batch: a process has fifteen at
most, and without one it claims, renews, stores and publishes nothing."""
POSTGRES_PORT = 5432
CHECK_WITHIN_S = 5.0
COMMIT_LATE_S = 5.0
LOCK_LATE_S, LOCK_LOOKS = 1.0, 12
REASON_CHARS = 120
LOCK_S = 30.0
PROBE = "INSERT INTO budgets (name, value) VALUES ('probe', '') ON CONFLICT (name) DO UPDATE SET value = ''"

# Of our own user: what others wait for is shown to administrators alone.
AWAITING = text(
    "SELECT count(*) FROM pg_stat_activity WHERE usename = current_user AND wait_event = 'SyncRep'"
    " AND clock_timestamp() - query_start > make_interval(secs => CAST(:late_s AS float))"
)

# Who holds whole tables of ours against writes, or waits to (all others wait behind him), and whether one of ours waits
# for it: raw, as PostgreSQL alone tells it. A prepared transaction has no process.
HELD = text(
    "SELECT held.pid, held.relation::regclass::text, held.granted,"
    " CASE WHEN NOT held.granted THEN (pg_blocking_pids(held.pid))[1] END AS behind,"
    " EXISTS (SELECT FROM pg_locks AS waits"
    " JOIN pg_stat_activity AS ours ON ours.pid = waits.pid AND ours.usename = current_user"
    " WHERE waits.database = held.database AND waits.relation = held.relation AND NOT waits.granted"
    " AND waits.pid IS DISTINCT FROM held.pid"
    " AND clock_timestamp() - ours.query_start > make_interval(secs => CAST(:late_s AS float))) AS keeps"
    " FROM pg_locks AS held JOIN pg_database AS here ON here.oid = held.database AND here.datname = current_database()"
    " WHERE held.locktype = 'relation'"
    " AND held.relation IN (SELECT to_regclass(quote_ident(name)) FROM unnest(CAST(:ours AS text[])) AS name)"
    " AND held.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
    " ORDER BY keeps DESC, held.granted DESC, held.pid LIMIT 1"
)

# Who keeps statements of ours waiting; one who waits for nobody himself comes first.
BLOCKS = text(
    "SELECT blocks.pid, (SELECT application_name FROM pg_stat_activity WHERE pid = blocks.pid) AS name"
    " FROM pg_stat_activity AS ours, unnest(pg_blocking_pids(ours.pid)) AS blocks(pid)"
    " WHERE ours.usename = current_user AND ours.datname = current_database() AND ours.wait_event_type = 'Lock'"
    " AND clock_timestamp() - ours.query_start > make_interval(secs => CAST(:late_s AS float))"
    " GROUP BY 1 ORDER BY cardinality(pg_blocking_pids(blocks.pid)), count(*) DESC, 1 LIMIT 1"
)

# SQLSTATE classes and codes after which the same may well work: connection, transaction rollback (deadlock), out of
# resources, operator intervention, i/o error; a lock not had in time, a server that is a standby just now, a
# connection that was cut because its transaction stood idle.
_PASSING_CLASSES = ("08", "40", "53", "57", "58")
_PASSING_STATES = ("55P03", "25006", "25P03", "25P04")


class Database:
    """One database, SQLite or PostgreSQL. `url` as in `CONSUMER_DATABASE_URL`; nothing connects before first use.

    `create`: make SQLite's file when it is not there; without, raises DatabaseMissing. Not `durable`: what is committed
    may be lost with the machine's power, for a SQLite that nobody needs by then. `lock_s`: how long a statement waits
    for a table that somebody has locked, or for SQLite's file, BUSY_TIMEOUT_S at most. `path`: of SQLite's file.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = POOL_SIZE,
        create: bool = True,
        durable: bool = True,
        lock_s: float = LOCK_S,
    ) -> None:
        self._url, self._lock_s = url, lock_s
        self._engine, self.dialect = _engine(url, pool_size, create=create, durable=durable, lock_s=lock_s)
        _keep_whole(self._engine)
        self.path = make_url(url).database if self.dialect == "sqlite" else None
        self._write_failed = False
        # By it SQLite's engine knows which BEGIN it is to say: two, made once and not for each session.
        self._engines = {writes: self._engine.execution_options(consumer_writes=writes) for writes in (True, False)}
        # SQLite has one writer: our own writers queue up here, fairly, instead of in its busy handler.
        self._writer = asyncio.Lock() if self.dialect == "sqlite" else None

    @property
    def engine(self) -> AsyncEngine:
        """The engine, for migrations and tests."""
        return self._engine

    @asynccontextmanager
    async def migrating(self) -> AsyncIterator[AsyncEngine]:
        """An engine whose statements may take as long as they take: an index of a large table is made in minutes."""
        if self.dialect != "postgresql":
            yield self._engine
            return
        patient = postgresql_driver.engine(self._url, 1, command_timeout_s=None, lock_s=self._lock_s)
        try:
            yield patient
        finally:
            await patient.dispose()

    async def require_whole(self) -> None:
        """Read SQLite's file to its end; a database server checks its own files. Raises LedgerCorrupt,
        LedgerUnavailable."""
        if self.path is None:
            return
        with translated(self.path):
            fault = await asyncio.to_thread(sqlite_file.fault_in, Path(self.path), BUSY_TIMEOUT_S)
        if fault is not None:
            raise LedgerCorrupt(path=self.path, reason=" ".join(fault.split())[:REASON_CHARS])

    async def stop(self) -> None:
        """Close every connection."""
        await self._engine.dispose()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """One unit of work: commits at the end, rolls back on any exception. Never commit inside.

        Raises LedgerUnavailable when the database does not answer, SchemaOutdated when tables are missing.
        """
        async with AsyncExitStack() as stack:
            if self._writer is not None:
                await stack.enter_async_context(self._writer)
            try:
                with translated(self.path):
                    async with self._session(writes=True) as session, session.begin():
                        yield session
            except (SchemaOutdated, LedgerLocked):
                raise
            except LedgerError:
                self._write_failed = True  # a full disk still reads: only a write tells when there is room again
                raise
            self._write_failed = False

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """A session that only reads. Raises as `transaction` does."""
        with translated(self.path):
            async with self._session(writes=False) as session:
                yield session

    async def probe(self) -> None:
        """Write one row that is nobody's. Raises LedgerError, which says why it could not."""
        async with self.transaction() as session:
            await session.execute(text(PROBE))

    async def require_commits(self) -> None:
        """Raises LedgerAwaitsReplica when commits of ours have waited COMMIT_LATE_S for a synchronous replica, which no
        read would show. Raises LedgerError when the database does not answer."""
        if self.dialect != "postgresql":
            return
        async with self.reading() as session:
            if await session.scalar(AWAITING, {"late_s": COMMIT_LATE_S}):
                raise LedgerAwaitsReplica

    async def require_unlocked(self) -> None:
        """Raises LedgerLocked, with PostgreSQL's process and the table, when somebody holds a whole table of ours
        against writes and one of our statements waits for it; other tables are written meanwhile. Our statements give
        up after some seconds and come again, so while a table is held this looks LOCK_LOOKS times for one that waits.
        Raises LedgerError when the database does not answer."""
        asked = {"late_s": LOCK_LATE_S, "ours": list(SQLModel.metadata.tables)}
        for _ in range(LOCK_LOOKS if self.dialect == "postgresql" else 0):
            async with self.reading() as session:
                held = (await session.execute(HELD, asked)).first()
            if held is None:
                return
            if held.keeps:
                raise _locked(*held[:4])
            await asyncio.sleep(LOCK_LATE_S / 2)

    async def who_blocks(self) -> str | None:
        """Who holds rows or a table that a statement of ours waits for, for an operator; None where nobody is seen to.
        Our statements give up and come again, so this looks LOCK_LOOKS times. Raises LedgerError."""
        for _ in range(LOCK_LOOKS if self.dialect == "postgresql" else 0):
            async with self.reading() as session:
                found = (await session.execute(BLOCKS, {"late_s": LOCK_LATE_S})).first()
            if found is not None and found.pid == 0:
                return "a prepared transaction (`SELECT * FROM pg_prepared_xacts`) holds what ours wait for"
            if found is not None:
                look = f"look at it (`SELECT * FROM pg_stat_activity WHERE pid = {found.pid}`)"
                is_ours = found.name == postgresql_driver.APPLICATION_NAME  # a rebuild, say, which ends by itself
                then = "it is one of ours: a rebuild, an import?" if is_ours else "and end its transaction"
                return f"PostgreSQL's process {found.pid} holds what ours wait for: {look}, {then}"
            await asyncio.sleep(LOCK_LATE_S / 2)
        return None

    async def check(self) -> bool:
        """Whether the database answers now and, after a failed write, takes writes again; bounded. Raises LedgerError,
        which says why not."""
        try:
            async with asyncio.timeout(CHECK_WITHIN_S):
                if self._write_failed:
                    await self.probe()
                async with self.reading() as session:
                    await session.execute(text("SELECT 1"))
        except TimeoutError as error:
            raise LedgerUnavailable(reason=f"no answer within {CHECK_WITHIN_S:g} s") from error
        return True

    def _session(self, *, writes: bool) -> AsyncSession:
        return AsyncSession(
            self._engines[writes], sync_session_class=LentSession, expire_on_commit=False, autoflush=True
        )


class translated:  # noqa: N801 - reads as a word: with translated():
    """Turns the driver's errors into ours; the original stays as the cause. `path`: of SQLite's file, which is told."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        # A failed connect raises what the driver says as it is, known by its SQLSTATE, or as SQLite's.
        is_plain = isinstance(error, PoolTimeout | OSError) or hasattr(error, "sqlstate")
        if error is None or not (is_plain or isinstance(error, DBAPIError | sqlite3.Error)):
            return
        # What SQLite said; SQLAlchemy hands a failed connect on as it is.
        told = error.orig if isinstance(error, DBAPIError) else error
        name = getattr(told, "sqlite_errorname", None) or type(told).__name__
        known = of_database(error)
        if self._path is not None and is_for_want_of_room(name, Path(self._path)):
            known = LedgerDiskFull(state=name)
        if known is not None:
            if self._path is not None:
                known.fields["path"] = self._path
                known = of_disk(known, Path(self._path))
            raise known from error
        if is_plain:
            raise LedgerUnavailable(reason=name, path=self._path) from error
        if isinstance(error, DBAPIError):
            if is_unavailable(error):
                raise LedgerUnavailable(reason=name, path=self._path) from error
            if is_missing_table(error):
                raise SchemaOutdated from error


def _locked(pid: int | None, table: str, is_granted: bool, behind: int | None) -> LedgerLocked:
    """`behind`: the process that who is not granted the lock waits for; 0 or None where it is no process."""
    who = "A prepared transaction (`SELECT * FROM pg_prepared_xacts`)"
    if pid is not None:
        who = f"PostgreSQL's process {pid}"
    if is_granted:
        return LedgerLocked(f"{who} holds table {table} locked", pid=pid)
    first = f"process {behind}" if behind else "a prepared transaction (`SELECT * FROM pg_prepared_xacts`)"
    return LedgerLocked(f"{who} waits for {first} to lock table {table}, and all others wait behind it", pid=pid)


def is_unavailable(error: DBAPIError) -> bool:
    """Whether trying the same again can help: the connection broke, the file is locked, a deadlock was resolved."""
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None) or ""
    words = str(error.orig).lower()
    # Who is refused by a constraint reads its name there, which is a plugin's: a column `locked_by`.
    names = isinstance(error, IntegrityError | DataError)
    return (
        error.connection_invalidated
        or state[:2] in _PASSING_CLASSES
        or state in _PASSING_STATES
        or ("locked" in words and not names)
        or "disk i/o" in words
        or "unable to open database" in words
        or "disk is full" in words
        or "connection is closed" in words
        or "connection was closed" in words
    )


def user_of(url: str) -> str | None:
    """As whom this URL logs in; None where it does not say."""
    return make_url(url).username


def server_of(url: str) -> str | None:
    """The host and port of this URL; None for a file."""
    parts = make_url(url)
    return f"{parts.host}:{parts.port or POSTGRES_PORT}" if parts.host else None


def is_missing_table(error: DBAPIError) -> bool:
    """Whether the schema is not there."""
    words = str(error.orig).lower()
    return isinstance(error, OperationalError | ProgrammingError) and (
        "no such table" in words or "no such column" in words or "undefinedtable" in words or "does not exist" in words
    )


def _engine(url: str, pool_size: int, *, create: bool, durable: bool, lock_s: float) -> tuple[AsyncEngine, str]:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise LedgerError("the database URL is not one") from error
    match parsed.drivername:
        case "sqlite+aiosqlite":
            if parsed.database and parsed.database != ":memory:":
                _see_to_file(Path(parsed.database), create=create)
            with _usable():
                lock_s = min(lock_s, BUSY_TIMEOUT_S)
                return sqlite_driver.engine(url, pool_size, durable=durable, lock_s=lock_s), "sqlite"
        case "postgresql+asyncpg":
            with _usable():
                return postgresql_driver.engine(url, pool_size, lock_s=lock_s), "postgresql"
    raise LedgerError("the database URL must begin with sqlite+aiosqlite:// or postgresql+asyncpg://")


@contextmanager
def _usable() -> Iterator[None]:
    """SQLAlchemy reads what stands behind the '?' as it makes an engine. Raises SettingsError, without a value."""
    try:
        yield
    except (ArgumentError, ValueError) as error:
        raise SettingsError(["CONSUMER_DATABASE_URL: what stands behind the '?' cannot be used"]) from error


def _see_to_file(path: Path, *, create: bool) -> None:
    """Make the file with `create`; without, see that it is there. Raises LedgerError, DatabaseMissing."""
    if not create:
        if not path.exists():
            raise _missing(path)
        return
    try:
        sqlite_file.make(path)
    except OSError as error:
        raise of_disk(LedgerNotOpened(path=str(path), reason=error.strerror), path) from error


def _missing(path: Path) -> DatabaseMissing:
    """A path that is relative is so to the folder one is in: who is in another must not be told to make a second
    ledger."""
    if path.is_absolute():
        return DatabaseMissing(path=str(path))
    where = f"There is no database {path} in {Path.cwd()}"
    return DatabaseMissing(f"{where}: run this in the folder of `consumer dev`, or set CONSUMER_DATABASE_URL")


def _keep_whole(engine: AsyncEngine) -> None:
    """A handler that is lent a transaction does not end it, by whichever way."""

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def see(_: Connection, __: object, statement: str, *___: object) -> None:
        see_to_statement(statement)

    @event.listens_for(engine.sync_engine, "commit")
    def refuse(connection: Connection) -> None:
        see_to_commit(connection)
