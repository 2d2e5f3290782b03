"""A PostgreSQL that ends, is damaged, full, or cannot prove who it is: each is told by our own code, and by its."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import certifi
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from consumer import errors
from consumer.errors import LedgerError
from consumer.ledger import Database
from consumer.ledger.engine import database as module
from tests.faults.scene import small_disk
from tests.support.ports import eventually
from tests.support.postgres import StoppableServer, create_database, stoppable_server

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

PAGE_BYTES = 8192
SSL_REQUEST_BYTES = 8
OURS = Path(__file__).parents[2] / "payments" / "self_signed.pem"
EXPIRED = Path(__file__).with_name("expired.pem")
"""Certificates of 127.0.0.1 with their keys, each its own authority; for tests only."""


@pytest.fixture(scope="module")
def server() -> Iterator[StoppableServer]:
    with stoppable_server() as found:
        yield found


@pytest.fixture
async def database(server: StoppableServer) -> AsyncIterator[Database]:
    found = Database(await asyncio.to_thread(create_database, server.uri), pool_size=2)
    yield found
    await found.stop()


@pytest.fixture
def disk(server: StoppableServer) -> Iterator[Path]:
    """A small one, which is the server's."""
    found = server.data.parent / "small"
    with small_disk(found, room_mib=2):
        if not os.path.ismount(found):
            pytest.skip("a disk of its own is needed: mounting wants root")
        os.chown(found, server.data.stat().st_uid, -1)
        yield found


async def say(database: Database, *statements: str) -> None:
    async with database.transaction() as session:
        for statement in statements:
            await session.execute(text(statement))


async def refused(database: Database, *statements: str) -> tuple[type[LedgerError], object]:
    """What it is told as, and by which code of the server's."""
    with pytest.raises(LedgerError) as told:
        await say(database, *statements)
    return type(told.value), told.value.fields.get("state")


async def cut_short(database: Database, server: StoppableServer, end: Callable[[], Awaitable[object]]) -> object:
    """What a statement is told that is under way when this happens."""
    sleeping = asyncio.create_task(refused(database, "SELECT pg_sleep(60)"))
    admin = await asyncpg.connect(server.uri)

    async def runs() -> bool:
        sought = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pg_sleep%'"
        return bool(await admin.fetchval(sought))

    try:
        await eventually(runs, within_s=20, every_s=0.05, what="the statement is under way")
    finally:
        await admin.close()
    await end()
    return await sleeping


# case: O2
# cause: 57P01, 08
async def test_a_server_that_is_stopped_and_one_that_crashes(database: Database, server: StoppableServer) -> None:
    for mode, told in (("fast", (errors.DatabaseNotUp, "57P01")), ("immediate", (errors.LedgerUnavailable, "08003"))):
        found = await cut_short(database, server, lambda mode=mode: asyncio.to_thread(server.stop, mode))  # type: ignore[misc]  # its default binds
        await asyncio.to_thread(server.start)
        assert found == told
        await database.stop()  # connections that are gone
        await say(database, "SELECT 1")


# case: O2
# cause: XX001, XX002
async def test_a_damaged_page_of_a_table_and_of_an_index(database: Database, server: StoppableServer) -> None:
    await say(
        database,
        "CREATE TABLE heap AS SELECT generate_series(1, 1000) AS x",
        "CREATE TABLE keyed (x integer PRIMARY KEY)",
        "INSERT INTO keyed SELECT generate_series(1, 1000)",
    )
    async with database.reading() as session:
        heap = await session.scalar(text("SELECT pg_relation_filepath('heap')"))
        index = await session.scalar(text("SELECT pg_relation_filepath('keyed_pkey')"))
    await database.stop()
    await asyncio.to_thread(server.stop, "fast")
    _overwrite(server.data / str(heap), 0, b"\xff" * PAGE_BYTES)
    _overwrite(server.data / str(index), 1, bytes(PAGE_BYTES))  # an empty page is right, by its checksum
    await asyncio.to_thread(server.start)
    assert await refused(database, "SELECT * FROM heap") == (errors.LedgerCorrupt, "XX001")
    assert await refused(database, "SELECT * FROM keyed WHERE x = 5") == (errors.LedgerCorrupt, "XX002")


def _overwrite(path: Path, page: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(page * PAGE_BYTES)
        file.write(content)


# case: I2, O2
# cause: 53100
async def test_a_full_disk(database: Database, server: StoppableServer, disk: Path) -> None:
    admin = await asyncpg.connect(server.uri)
    await admin.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
    filling = "INSERT INTO full_up SELECT repeat('x', 1000) FROM generate_series(1, 5000)"
    found = await refused(database, "CREATE TABLE full_up (x text) TABLESPACE small", filling)
    await admin.execute("DROP TABLESPACE small")
    await admin.close()
    assert found == (errors.LedgerDiskFull, "53100")


# case: O2
# cause: REPLICA
async def test_a_synchronous_replica_that_is_gone(
    database: Database, server: StoppableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commits hang; it was told as a server that does not answer, or is busy."""
    monkeypatch.setattr(module, "COMMIT_LATE_S", 0.5)
    await say(database, "CREATE TABLE kept (x integer)")
    await database.require_commits()
    admin = await asyncpg.connect(server.uri)
    committing = None
    try:
        await admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'gone'")
        await admin.execute("SELECT pg_reload_conf()")
        committing = asyncio.create_task(say(database, "INSERT INTO kept VALUES (1)"))

        async def is_told() -> bool:
            try:
                await database.require_commits()
            except errors.LedgerAwaitsReplica:
                return True
            return False

        await eventually(is_told, within_s=20, every_s=0.1, what="a commit waits")
    finally:
        await admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
        await admin.execute("SELECT pg_reload_conf()")
        await admin.close()
        if committing is not None:
            await asyncio.wait_for(committing, 20)
    await database.require_commits()


# case: O2
async def test_a_table_that_somebody_holds_is_named_with_who_holds_it(
    database: Database, server: StoppableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table alone is held, and all others are written: who waited for the leases was told after two minutes, by
    what was not published meanwhile."""
    monkeypatch.setattr(module, "LOCK_LATE_S", 0.1)
    await say(database, "CREATE TABLE leases (x integer)")
    stranger = await connect(database, server)
    holding = stranger.transaction()
    await holding.start()
    await stranger.execute("LOCK TABLE leases IN EXCLUSIVE MODE")
    await database.require_unlocked()
    waiting = asyncio.create_task(say(database, "INSERT INTO leases VALUES (1)"))
    said = await who_locks(database)
    pid = await stranger.fetchval("SELECT pg_backend_pid()")
    await holding.rollback()
    await stranger.close()
    await asyncio.wait_for(waiting, 20)
    assert said == f"PostgreSQL's process {pid} holds table leases locked"
    await database.require_unlocked()


# case: O2
async def test_who_waits_for_a_table_behind_a_reader_is_named_with_the_reader(
    database: Database, server: StoppableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commonest way to lock a table: an ALTER TABLE behind an idle transaction, and all others behind it."""
    monkeypatch.setattr(module, "LOCK_LATE_S", 0.1)
    await say(database, "CREATE TABLE leases (x integer)")
    idle, alters = await connect(database, server), await connect(database, server)
    reading = idle.transaction()
    await reading.start()
    await idle.fetch("SELECT * FROM leases")
    altering = asyncio.create_task(alters.execute("ALTER TABLE leases ADD COLUMN y integer"))
    pids = await idle.fetchval("SELECT pg_backend_pid()"), alters.get_server_pid()

    async def is_queued() -> bool:
        return bool(await idle.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    await eventually(is_queued, within_s=20, every_s=0.05, what="it waits")
    waiting = asyncio.create_task(say(database, "INSERT INTO leases VALUES (1)"))
    said = await who_locks(database)
    await reading.rollback()
    await asyncio.wait_for(asyncio.gather(altering, waiting), 20)
    await idle.close()
    await alters.close()
    assert said == (
        f"PostgreSQL's process {pids[1]} waits for process {pids[0]} to lock table leases, "
        "and all others wait behind it"
    )


# case: O2
async def test_who_holds_rows_that_ours_wait_for_is_named(
    database: Database, server: StoppableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` sent to `doctor`, and each of its lines was ok: no table was locked."""
    monkeypatch.setattr(module, "LOCK_LATE_S", 0.1)
    await say(database, "CREATE TABLE leases (x integer)", "INSERT INTO leases VALUES (1)")
    stranger = await connect(database, server)
    holding = stranger.transaction()
    await holding.start()
    await stranger.fetch("SELECT * FROM leases FOR UPDATE")
    assert await database.who_blocks() is None
    waiting = asyncio.create_task(say(database, "UPDATE leases SET x = 2"))
    said = await eventually(database.who_blocks, within_s=20, every_s=0.1, what="who holds them is told")
    pid = await stranger.fetchval("SELECT pg_backend_pid()")
    await holding.rollback()
    await stranger.close()
    await asyncio.wait_for(waiting, 20)
    assert f"PostgreSQL's process {pid} holds what ours wait for" in said


# case: O2
async def test_a_prepared_transaction_that_holds_a_table_is_told_as_one() -> None:
    """It has no process: `process None` was told."""
    assert "A prepared transaction" in module._locked(None, "leases", True, None).sentence()
    assert "waits for a prepared transaction" in module._locked(7, "leases", False, 0).sentence()


# case: O2
async def test_what_strangers_lock_in_the_same_database_is_not_waited_for(
    database: Database, server: StoppableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked waited for six seconds, for a temporary table."""
    monkeypatch.setattr(module, "LOCK_LATE_S", 3600.0)
    stranger = await connect(database, server)
    holding = stranger.transaction()
    await holding.start()
    await stranger.execute("CREATE TABLE theirs (x integer)")
    await stranger.execute("CREATE INDEX of_theirs ON theirs (x)")
    await stranger.execute("CREATE TEMPORARY TABLE leases (x integer)")
    await asyncio.wait_for(database.require_unlocked(), 20)
    await holding.rollback()
    await stranger.close()


async def connect(database: Database, server: StoppableServer) -> asyncpg.Connection:
    """A stranger's connection to the same database."""
    return await asyncpg.connect(make_url(server.uri).set(database=database.engine.url.database).render_as_string())


async def who_locks(database: Database) -> str:
    """What is told of a table that is held, as soon as it is told."""

    async def told() -> str:
        try:
            await database.require_unlocked()
        except errors.LedgerLocked as error:
            return error.sentence()
        return ""

    said: str = await eventually(told, within_s=20, every_s=0.1, what="who holds it is told")
    return said


# case: O2
# cause: 58030
async def test_a_disk_that_answers_with_an_input_output_error(database: Database) -> None:
    """It was told as a server that does not answer."""
    copied = ("CREATE TABLE copied (x text)", "COPY copied FROM '/proc/self/mem'")  # Linux reads none at its first byte
    assert await refused(database, *copied) == (errors.LedgerDiskFailing, "58030")


# --- TLS ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def secured(server: StoppableServer, certificate: Path) -> AsyncIterator[int]:
    """The port of a door to the server that speaks TLS, as its own build does not."""
    socket = Path(parse_qs(urlsplit(server.uri).query)["host"][0]) / ".s.PGSQL.5432"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readexactly(SSL_REQUEST_BYTES)
            writer.write(b"S")
            await writer.start_tls(context)
            its_reader, its_writer = await asyncio.open_unix_connection(str(socket))
            await asyncio.gather(_pass_on(reader, its_writer), _pass_on(its_reader, writer))
        writer.close()

    door = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with door:
        yield door.sockets[0].getsockname()[1]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
    writer.close()


# case: O2
# cause: DATABASE_TLS
async def test_a_server_that_cannot_prove_who_it_is(
    database: Database, server: StoppableServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_url(str(database.engine.url)).database

    async def asked(certificate: Path, *, host: str = "127.0.0.1", trusts: Path | str | None = None) -> object:
        monkeypatch.setenv("PGSSLROOTCERT", str(trusts or certificate))
        async with secured(server, certificate) as port:
            found = Database(f"postgresql+asyncpg://postgres@{host}:{port}/{name}?ssl=verify-full")
            try:
                await say(found, "SELECT 1")
            except LedgerError as error:
                return type(error), error.fields.get("said")
            finally:
                await found.stop()
        return "taken"

    assert await asked(OURS, host="localhost") == (
        errors.DatabaseTlsFailed, "Hostname mismatch, certificate is not valid for 'localhost'."
    )  # fmt: skip
    assert await asked(OURS, trusts=certifi.where()) == (errors.DatabaseTlsFailed, "self-signed certificate")
    assert await asked(EXPIRED) == (errors.DatabaseTlsFailed, "certificate has expired")
    assert await asked(OURS) == "taken"
    found = await asked(OURS, trusts=tmp_path / "nowhere.pem")
    assert found == (errors.DatabaseTlsFailed, "the file of the authority that signs the server's cannot be read")
    monkeypatch.delenv("PGSSLROOTCERT")
    monkeypatch.setenv("HOME", str(tmp_path))  # where asyncpg looks for it otherwise
    lost = Database(f"postgresql+asyncpg://postgres@127.0.0.1:1/{name}?ssl=verify-full")
    with pytest.raises(errors.DatabaseTlsFailed) as told:
        await say(lost, "SELECT 1")
    assert "authority" in told.value.sentence(), "so that `status` says it"
