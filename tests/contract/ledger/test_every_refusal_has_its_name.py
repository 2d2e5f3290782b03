"""What a database server or file refuses is told by our own code, with a sentence and a cure; nothing is `internal`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError

from consumer import errors
from consumer.causes import KAFKA, SQLITE, SQLSTATES, cure_of, every
from consumer.causes import refused as refused_by_a_server
from consumer.errors import LedgerError
from consumer.ledger import Database
from consumer.ledger.engine import database as engine
from consumer.ledger.engine import schema
from tests.faults.server import PASSWORD, postgres
from tests.support.ports import eventually
from tests.support.postgres import StoppableServer, create_database, stoppable_server
from tests.support.throttle import no_file_beyond


async def refused(url: str, statement: str = "SELECT 1", *, create: bool = True) -> LedgerError:
    database = Database(url, pool_size=1, create=create)
    try:
        async with database.transaction() as session:
            await session.execute(text(statement))
    except LedgerError as error:
        return error
    finally:
        await database.stop()
    raise AssertionError("it was not refused")


def test_every_cause_has_a_sentence_and_a_cure() -> None:
    import aiokafka.errors

    assert all(cause.sentence and cause.cure for cause in every())
    assert len({cause.error.code for cause in every()}) > 20
    by_python = {"NotImplementedError"}  # what aiokafka raises for a request that a broker does not know
    assert [name for name in KAFKA if not hasattr(aiokafka.errors, name) and name not in by_python] == []
    assert [name for name in SQLITE if not hasattr(sqlite3, name)] == []
    assert cure_of("database_unknown") is not None
    assert set(SQLSTATES) >= {"3D000", "28000", "28P01", "42501", "53300", "57P03"}


# --- SQLite ----------------------------------------------------------------------------------------------------


# cause: ledger SQLITE_NOTADB, ledger SQLITE_CANTOPEN, ledger SQLITE_FULL, ledger SQLITE_BUSY, ledger SQLITE_READONLY
async def test_a_file_that_is_no_database_one_that_is_locked_and_one_in_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"this is not a database, however long it may be" * 100)
    no_database = await refused(f"sqlite+aiosqlite:///{broken}")
    assert (type(no_database), no_database.fields["state"]) == (errors.LedgerCorrupt, "SQLITE_NOTADB")
    full = f"sqlite+aiosqlite:///{tmp_path}/full.db"
    assert isinstance(await refused(f"sqlite+aiosqlite:///{tmp_path}"), errors.LedgerNotOpened)
    found = Database(full)
    async with found.transaction() as session:
        await session.execute(text("CREATE TABLE t (x)"))
        await session.execute(text("PRAGMA max_page_count = 4"))

    async def write(statement: str) -> None:
        async with found.transaction() as session:
            await session.execute(text(statement))

    with pytest.raises(errors.LedgerDiskFull):
        await write("INSERT INTO t VALUES (zeroblob(100000))")
    holder = sqlite3.connect(tmp_path / "full.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    other = Database(full, lock_s=0.1)
    with pytest.raises(errors.LedgerLocked):
        async with asyncio.timeout(engine.BUSY_TIMEOUT_S / 2), other.transaction() as session:
            await session.execute(text("CREATE TABLE u (x)"))
    await other.stop()
    holder.close()
    async with found.reading() as session:
        await session.execute(text("PRAGMA query_only = 1"))
    with pytest.raises(errors.LedgerReadOnly):
        await write("INSERT INTO t VALUES (1)")
    await found.stop()


# cause: ledger SQLITE_CORRUPT
async def test_damage_inside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    url = f"sqlite+aiosqlite:///{path}"
    found = Database(url)
    async with found.transaction() as session:
        await session.execute(text("CREATE TABLE t (x TEXT)"))
        await session.execute(text("INSERT INTO t SELECT zeroblob(3000) FROM pragma_function_list LIMIT 50"))
    await found.stop()
    content = bytearray(path.read_bytes())
    assert len(content) > 12_288
    content[4096:-4096] = b"\xff" * (len(content) - 8192)  # neither the first page nor the last
    path.write_bytes(content)
    told = await refused(url, "SELECT sum(length(x)) FROM t")
    assert isinstance(told, errors.LedgerCorrupt)
    assert told.fields == {"state": "SQLITE_CORRUPT", "path": str(path)}


# case: O2
# cause: ledger SQLITE_IOERR
async def test_a_disk_that_answers_with_an_input_output_error(tmp_path: Path) -> None:
    """It was told as a server that does not answer."""
    path = tmp_path / "ledger.db"
    found = Database(f"sqlite+aiosqlite:///{path}")

    async def write() -> None:
        async with found.transaction() as session:
            await session.execute(text("CREATE TABLE IF NOT EXISTS t (x)"))
            await session.execute(text("INSERT INTO t VALUES (zeroblob(1000000))"))

    with no_file_beyond(200_000), pytest.raises(errors.LedgerDiskFailing) as told:
        await write()
    assert told.value.fields == {"state": "SQLITE_IOERR_WRITE", "path": str(path)}
    assert "kernel's log" in (cure_of(told.value.code) or "")
    await write()
    await found.stop()


# cause: ledger SQLITE_LOCKED
async def test_a_table_that_this_transaction_still_reads(tmp_path: Path) -> None:
    found = Database(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")

    async def drop_what_is_read() -> None:
        async with found.transaction() as session:
            await session.execute(text("CREATE TABLE t (x INTEGER)"))
            many = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 2000) SELECT x FROM n"
            await session.execute(text(f"INSERT INTO t {many}"))
            reading = await session.stream(text("SELECT x FROM t"))
            await reading.fetchone()
            await session.execute(text("DROP TABLE t"))

    with pytest.raises(errors.LedgerLocked) as told:
        await drop_what_is_read()
    assert told.value.fields["state"] == "SQLITE_LOCKED"
    await found.stop()


# --- PostgreSQL ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[StoppableServer]:
    with stoppable_server() as found:
        yield found


@pytest.fixture
async def owned(server: StoppableServer) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
    url = await asyncio.to_thread(create_database, server.uri)
    connection = await asyncpg.connect(server.uri)
    yield url, connection
    await connection.close()


def other(url: str, *, username: str | None = None, database: str | None = None) -> str:
    return make_url(url).set(username=username, database=database).render_as_string(hide_password=False)


# cause: 3D000, 28000, 42501, 53300, 25006, 57014, 55P03
@pytest.mark.postgres
@pytest.mark.slow
async def test_on_a_real_server(owned: tuple[str, asyncpg.Connection]) -> None:
    url, admin = owned
    assert isinstance(await refused(other(url, database="nowhere")), errors.DatabaseUnknown)
    assert isinstance(await refused(other(url, username="nobody")), errors.DatabaseLoginRefused)
    await admin.execute("DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN")
    own = Database(url)
    async with own.transaction() as session:
        await session.execute(text("CREATE TABLE till (x integer)"))
    assert isinstance(await refused(other(url, username="clerk"), "SELECT * FROM till"), errors.DatabaseForbidden)
    await admin.execute("ALTER ROLE clerk CONNECTION LIMIT 0")
    assert isinstance(await refused(other(url, username="clerk")), errors.DatabaseTooManyClients)
    await admin.execute("ALTER ROLE clerk CONNECTION LIMIT -1")
    await admin.execute("ALTER ROLE clerk SET default_transaction_read_only = on")
    assert isinstance(await refused(other(url, username="clerk"), "CREATE TABLE t (x integer)"), errors.LedgerReadOnly)
    await admin.execute("ALTER ROLE clerk SET statement_timeout = 10")
    assert isinstance(await refused(other(url, username="clerk"), "SELECT pg_sleep(5)"), errors.StatementCancelled)
    async with own.transaction() as session:
        await session.execute(text("LOCK TABLE till"))
        assert isinstance(await refused(url, "LOCK TABLE till NOWAIT"), errors.LedgerLocked)
    await own.stop()


# cause: 28P01, 57P03
@pytest.mark.postgres
@pytest.mark.slow
async def test_a_real_server_that_asks_for_a_password_speaks_no_tls_and_is_about_to_stop() -> None:
    async with postgres() as found:
        assert (await refused(found.url.replace(PASSWORD, "wrong"))).fields == {"state": "28P01"}
        secured = await refused(found.url.replace("ssl=disable", "ssl=require"))
        assert isinstance(secured, errors.DatabaseTlsFailed)
        lost = await refused(found.url.replace("127.0.0.1", "no-such-host.invalid"))
        assert lost.fields == {"reason": "nobody knows the server's name"}
        own = Database(found.url)
        async with own.transaction() as session:
            await session.execute(text("CREATE TABLE till (x integer CHECK (x > 0))"))
        with pytest.raises(IntegrityError) as told:
            async with own.transaction() as session:
                await session.execute(text("INSERT INTO till VALUES (-1)"))
        named = refused_by_a_server(told.value)
        assert named is not None
        assert named.line() == "error[ledger_error]: The ledger refused. (state=23514)"
        await own.stop()
        await found.hold("till", gently=True)
        await found.begin_to_stop()

        async def stops() -> bool:
            return isinstance(await refused(found.url), errors.DatabaseNotUp)

        await eventually(stops, within_s=20, every_s=0.2, what="57P03 is told")
        await found.let_go()


@pytest.mark.postgres
@pytest.mark.slow
async def test_a_server_that_is_away_is_unavailable(server: StoppableServer) -> None:
    url = await asyncio.to_thread(create_database, server.uri)
    await asyncio.to_thread(server.stop, "fast")
    try:
        assert isinstance(await refused(url), errors.LedgerUnavailable)
    finally:
        await asyncio.to_thread(server.start)


# --- the schema ------------------------------------------------------------------------------------------------


# case: O9
async def test_a_database_that_is_ahead_and_lacks_what_this_version_needs_is_not_up_to_date(database: Database) -> None:
    async with database.transaction() as session:
        await session.execute(text("ALTER TABLE hints ADD COLUMN colour VARCHAR(10)"))
    assert (await schema.state(database)).is_current, "what may be left out harms nobody"
    async with database.transaction() as session:
        await session.execute(text("ALTER TABLE hints RENAME COLUMN attempts TO denials"))
    found = await schema.state(database)
    assert not found.is_current
    assert "hints.attempts" in found.lacking
    with pytest.raises(errors.SchemaIncompatible):
        await schema.require_current(database)
    async with database.transaction() as session:  # on PostgreSQL the next tests use it, too
        await session.execute(text("ALTER TABLE hints RENAME COLUMN denials TO attempts"))
        await session.execute(text("ALTER TABLE hints DROP COLUMN colour"))
