"""Database: what an error means (try again, upgrade first, the merchant's own) and that it speaks of no value."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import traceback
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from consumer.errors import LedgerError, LedgerUnavailable, SchemaOutdated
from consumer.ledger import Database
from consumer.ledger.engine import database as database_module
from consumer.ledger.engine import schema
from consumer.ledger.handling import events
from consumer.ledger.tables import AuditRow
from tests.contract.ledger.facts import NOW, Undone, event
from tests.support.ports import answers, eventually
from tests.support.process import another_process

SECRET = "jane.doe@example.com"
ON_POSTGRESQL = pytest.mark.parametrize(
    "database_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True
)
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


async def fails(database: Database, statement: str, **values: Any) -> BaseException:
    try:
        async with database.transaction() as session:
            await session.execute(text(statement), values)
    except Exception as error:  # noqa: BLE001 - what it is, is the test's question
        return error
    raise AssertionError("it did not fail")


# --- the schema ------------------------------------------------------------------------------------------------


async def test_an_empty_database_asks_for_an_upgrade(empty: Database) -> None:
    with pytest.raises(SchemaOutdated):
        await schema.require_current(empty)
    with pytest.raises(SchemaOutdated):
        async with empty.transaction() as session:
            await events.record(session, [event(1)], NOW)
    with pytest.raises(SchemaOutdated):
        async with empty.reading() as session:
            await events.known(session, [("default", "evt_1")])
    assert await answers(empty), "it answers, though"


async def test_a_missing_column_asks_for_an_upgrade(database: Database) -> None:
    assert isinstance(await fails(database, "SELECT not_there FROM events"), SchemaOutdated)


NEEDED = """
import sys
from consumer.ledger.engine.shape import needed
assert "consumer.ledger.tables" not in sys.modules
print(*[table.name for table in needed(())])
"""


def test_who_has_but_the_base_tables_in_memory_looks_at_all_of_them() -> None:
    said = subprocess.run([sys.executable, "-c", NEEDED], capture_output=True, text=True, check=True, timeout=60).stdout
    assert {"budgets", "events", "outbox", "processes", "revisions", "runs"} <= set(said.split())


# --- values ----------------------------------------------------------------------------------------------------


# case: I25
async def test_no_text_of_an_error_quotes_a_value(database: Database) -> None:
    """Neither the message nor the traceback, through all causes, as a log would show them."""
    insert = "INSERT INTO budgets (name, value) VALUES (:name, :value)"
    async with database.transaction() as session:
        await session.execute(text(insert), {"name": SECRET, "value": "x"})
    attempts: list[tuple[str, dict[str, Any]]] = [
        (insert, {"name": SECRET, "value": "x"}),
        (insert, {"name": SECRET + "2", "value": None}),
        ("INSERT INTO nowhere (name) VALUES (:name)", {"name": SECRET}),
    ]
    if database.dialect == "postgresql":
        attempts += [
            (insert, {"name": SECRET * 100, "value": "x"}),
            (insert, {"name": SECRET + "\0", "value": "x"}),
            (insert, {"name": {"mail": SECRET}, "value": "x"}),
            ("SELECT CAST(CAST(:name AS text) AS integer)", {"name": SECRET}),
            ("SELECT CAST(CAST(:name AS text) AS timestamptz)", {"name": SECRET}),
            ("SELECT CAST(CAST(:name AS text) AS jsonb)", {"name": SECRET}),
        ]
    for statement, values in attempts:
        error = await fails(database, statement, **values)
        told = "".join(traceback.format_exception(error)) + repr(error)
        assert SECRET not in told, statement
        assert "@" not in told.replace("@asynccontextmanager", ""), statement


# case: I25
async def test_an_error_still_says_what_it_is_about(database: Database) -> None:
    async with database.transaction() as session:
        await session.execute(text("INSERT INTO budgets (name, value) VALUES ('n', 'v')"))
    error = await fails(database, "INSERT INTO budgets (name, value) VALUES ('n', 'v')")
    assert isinstance(error, DBAPIError)
    assert "budgets" in str(error.orig)


# case: I25
async def test_a_row_of_the_session_is_not_told_either(database: Database) -> None:
    with pytest.raises(DBAPIError) as caught:
        async with database.transaction() as session:
            session.add(AuditRow(at=NOW, application=None, actor=SECRET, action="x.done", subject=SECRET))  # type: ignore[arg-type]  # breaks NOT NULL on purpose
    assert SECRET not in "".join(traceback.format_exception(caught.value))


# --- what passes -----------------------------------------------------------------------------------------------


@ON_POSTGRESQL
async def test_a_connection_that_the_server_cut_is_unavailable_and_then_fine(
    database: Database, other: Database
) -> None:
    async def interrupted() -> None:
        async with database.transaction() as session:
            await events.record(session, [event(1)], NOW)
            mine = await session.scalar(text("SELECT pg_backend_pid()"))
            async with other.transaction() as killer:
                await killer.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": mine})
            await events.record(session, [event(2)], NOW)

    with pytest.raises(LedgerUnavailable):
        await interrupted()
    async with database.transaction() as session:
        assert await events.known(session, [("default", "evt_1"), ("default", "evt_2")]) == frozenset()


@ON_POSTGRESQL
async def test_idle_connections_that_were_cut_are_not_noticed_at_all(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumer.ledger.postgresql_driver.RESTED_S", 0.0)  # idle is what was not used a moment ago
    async with database.transaction() as session:
        await events.record(session, [event(1)], NOW)
    async with other.transaction() as killer:
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        await killer.execute(text(f"SELECT pg_terminate_backend(pid) {others}"))
    async with database.transaction() as session:
        assert await events.known(session, [("default", "evt_1")])


@ON_POSTGRESQL
async def test_a_deadlock_passes(database: Database, other: Database) -> None:
    async with database.transaction() as session:
        await session.execute(text("INSERT INTO budgets (name, value) VALUES ('a', ''), ('b', '')"))
    first_holds, second_holds = asyncio.Event(), asyncio.Event()

    async def change(ledger: Database, names: str, mine: asyncio.Event, theirs: asyncio.Event) -> None:
        async with ledger.transaction() as session:
            for name in names:
                await session.execute(text("UPDATE budgets SET value = 'x' WHERE name = :name"), {"name": name})
                mine.set()
                await theirs.wait()

    ended = await asyncio.gather(
        change(database, "ab", first_holds, second_holds),
        change(other, "ba", second_holds, first_holds),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in ended) == ["LedgerUnavailable", "NoneType"]


@ON_POSTGRESQL
async def test_a_lock_that_is_not_had_passes(database: Database, other: Database) -> None:
    """Otherwise a worker would take it for the events' fault, and put them into quarantine."""
    async with database.transaction() as session:
        await session.execute(text("INSERT INTO budgets (name, value) VALUES ('a', '')"))
    async with database.transaction() as session:
        await session.execute(text("SELECT * FROM budgets FOR UPDATE"))
        assert isinstance(await fails(other, "SELECT * FROM budgets FOR UPDATE NOWAIT"), LedgerUnavailable)


@ON_POSTGRESQL
@pytest.mark.parametrize("setting", ["idle_in_transaction_session_timeout", "statement_timeout"])
async def test_a_time_limit_of_the_server_passes(database: Database, setting: str) -> None:
    async def slow() -> None:
        async with database.transaction() as session:
            await session.execute(text(f"SET LOCAL {setting} = '20ms'"))
            await asyncio.sleep(0.2)
            await session.execute(text("SELECT pg_sleep(0.2)"))

    with pytest.raises(LedgerUnavailable):
        await slow()
    assert await answers(database)


@ON_POSTGRESQL
async def test_a_server_that_is_a_standby_just_now_passes(database: Database) -> None:
    async def write() -> None:
        async with database.transaction() as session:
            await session.execute(text("SET TRANSACTION READ ONLY"))
            await events.record(session, [event(1)], NOW)

    with pytest.raises(LedgerUnavailable):
        await write()


@ON_SQLITE
async def test_a_file_that_another_process_holds_for_long_is_unavailable_and_then_fine(
    database_url: str, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", 0.05)
    hasty = Database(database_url)
    holder = sqlite3.connect(database_url.removeprefix("sqlite+aiosqlite:///"), isolation_level=None)
    try:
        holder.execute("BEGIN IMMEDIATE")
        assert isinstance(await fails(hasty, "DELETE FROM budgets"), LedgerUnavailable)
        assert await answers(hasty), "it can still be read"
        assert (await schema.state(hasty)).is_current
        holder.execute("ROLLBACK")
        async with hasty.transaction() as session:
            assert await events.record(session, [event(1)], NOW)
    finally:
        holder.close()
        await hasty.stop()


# case: O7
@ON_SQLITE
async def test_a_file_that_was_replaced_is_used_by_nobody_any_more(database: Database, tmp_path: Path) -> None:
    """A backup is put back under running roles: one that went on in the old file would do its work where nobody finds
    it, beside new connections that get the other one."""
    path, backup, away = tmp_path / "ledger.db", tmp_path / "backup.db", tmp_path / "away.db"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    async with database.transaction() as session, database.reading() as looking:  # two connections
        await events.record(session, [event(1)], NOW)
        await events.known(looking, [("default", "evt_1")])
    for name in ("", "-wal", "-shm"):
        path.with_name(f"ledger.db{name}").rename(away.with_name(f"away.db{name}"))
    for use in (database.transaction, database.reading):
        with pytest.raises(LedgerUnavailable) as told:
            async with use() as session:
                await events.known(session, [("default", "evt_1")])
        assert told.value.fields["path"] == str(path)
    assert not await answers(database)
    assert not path.exists(), "no empty one is made in its place"
    backup.rename(path)
    async with database.transaction() as session, database.reading() as looking:
        assert not await events.known(session, [("default", "evt_1")]), "the one that lies there now"
        assert not await events.known(looking, [("default", "evt_1")])
    assert await answers(database)


# case: O7
@ON_SQLITE
@pytest.mark.parametrize("gone", [["-wal"], ["-shm"], ["-wal", "-shm"]], ids=" ".join)
async def test_what_lies_beside_a_file_may_be_removed_and_nothing_is_lost(
    database: Database, other: Database, tmp_path: Path, gone: list[str]
) -> None:
    """Roles went on in what was removed, beside whoever connected after them: it was lost, or the file broken."""
    for number, one in enumerate((database, other), 1):  # two processes, each with two connections
        async with one.transaction() as session, one.reading() as looking:
            await events.record(session, [event(number)], NOW)
            await events.known(looking, [("default", "evt_1")])
    for name in gone:
        (tmp_path / f"ledger.db{name}").unlink()

    async def is_written(one: Database, number: int) -> bool:
        try:
            async with one.transaction() as session:
                await events.record(session, [event(number)], NOW)
        except LedgerUnavailable:
            return False
        return True

    for number, one in ((3, database), (4, other), (5, database)):
        await eventually(partial(is_written, one, number), within_s=20, what="the ledger takes writes again")
    assert _kept(tmp_path / "ledger.db") == 5, "a stranger sees all of it, beside them"
    await database.stop()
    await other.stop()
    assert _kept(tmp_path / "ledger.db") == 5, "and afterwards"


# case: O7
@ON_SQLITE
@pytest.mark.parametrize("gone", ["-wal", "-shm"])
async def test_what_lies_beside_a_file_may_be_removed_under_several_processes(
    database: Database, tmp_path: Path, gone: str
) -> None:
    """Where the first had put away what was in it, each statement of the others was an error of the disk for ever."""
    path = tmp_path / "ledger.db"

    async def write(numbers: range) -> None:
        for number in numbers:
            async with database.transaction() as session:
                await events.record(session, [event(number)], NOW)

    with another_process(OTHER, f"sqlite+aiosqlite:///{path}") as other:
        assert await other.answer() == "open"
        await write(range(10))
        path.with_name(f"{path.name}{gone}").unlink()
        with pytest.raises(LedgerUnavailable):
            await write(range(10, 11))
        await write(range(10, 310))  # so much that the file grows: its first page is in the new one, too
        assert await other.answer() == "written"
    await database.stop()
    assert _kept(path) == 311


OTHER = """
import asyncio, sys
import structlog
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.handling import events
from tests.contract.ledger.facts import NOW, event

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main():
    database = Database(sys.argv[1])
    sys.stdin.readline()
    async with database.reading() as session:
        await events.known(session, [("default", "evt_1")])
    print("open", flush=True)
    sys.stdin.readline()
    while True:
        try:
            async with database.transaction() as session:
                await events.record(session, [event(1000)], NOW)
            break
        except LedgerUnavailable:
            await asyncio.sleep(0.05)
    print("written", flush=True)
    await database.stop()

asyncio.run(main())
"""


def _kept(path: Path) -> int:
    """How many events another process finds in the file, which is whole."""
    look = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(c.execute(sys.argv[2]).fetchone()[0])"
    said = [
        subprocess.run([sys.executable, "-c", look, path, asked], check=True, capture_output=True, text=True).stdout
        for asked in ("PRAGMA integrity_check", "SELECT count(*) FROM events")
    ]
    assert said[0].strip() == "ok"
    return int(said[1])


async def test_a_database_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    nowhere = Database(f"postgresql+asyncpg://nobody@/none?host={tmp_path}")
    try:
        for use in (nowhere.transaction, nowhere.reading):
            with pytest.raises(LedgerUnavailable) as caught:
                async with use() as session:
                    await session.execute(text("SELECT 1"))
            assert caught.value.retryable
        with pytest.raises(LedgerUnavailable):
            await schema.require_current(nowhere)
        assert not await answers(nowhere)
    finally:
        await nowhere.stop()


# --- what is not the database's ----------------------------------------------------------------------------------


async def test_the_callers_own_errors_are_not_taken_for_the_databases(database: Database) -> None:
    with pytest.raises(Undone):
        async with database.transaction():
            raise Undone
    with pytest.raises(Undone):
        async with database.reading():
            raise Undone


@pytest.mark.parametrize("url", ["", "sqlite:///x.db", "postgresql://localhost/x", "mysql+aiomysql://x", "not a url"])
def test_an_url_of_another_kind_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(LedgerError) as caught:
        Database(url)
    assert not url or url not in caught.value.line()
