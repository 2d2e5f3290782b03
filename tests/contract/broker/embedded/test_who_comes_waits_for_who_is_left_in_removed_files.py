"""What lies beside a file is removed while a role starts: it opened new files beside those in which the others went on,
and what either of them had written was lost, answered or not."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from consumer import sqlite_file
from consumer.broker import EmbeddedBroker, TopicConfig
from consumer.broker.embedded import file as file_module
from consumer.errors import LedgerLocked, LogLocked
from consumer.ledger import Database, sqlite_driver
from consumer.ledger.engine import database as database_module
from consumer.ledger.engine import schema
from consumer.ledger.handling import events
from tests.contract.broker.conftest import message
from tests.contract.broker.embedded.test_the_file_survives_what_files_suffer import OTHER as PUBLISHES
from tests.contract.ledger.engine.test_the_ledger_says_what_is_wrong import OTHER as RECORDS
from tests.contract.ledger.facts import NOW, event
from tests.support.process import another_process

GONE = pytest.mark.parametrize("gone", [["-wal"], ["-shm"], ["-wal", "-shm"]], ids=" ".join)
ON_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who else has a file open, /proc tells")


# case: I1, I2
@GONE
@ON_LINUX
async def test_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: list[str]) -> None:
    path = tmp_path / "log.db"
    first, newcomer = EmbeddedBroker(path), EmbeddedBroker(path)
    await first.start()
    await first.ensure_topics([TopicConfig(name="t", partitions=1, retention_s=None, max_record_bytes=100_000)])
    await first.stop()
    with another_process(PUBLISHES, str(path), "before") as before:
        assert await before.answer() == "before"
        for name in gone:
            path.with_name(f"{path.name}{name}").unlink()
        with monkeypatch.context() as patched:
            patched.setattr(file_module, "BUSY_TIMEOUT_S", 0.2)
            with pytest.raises(LogLocked):
                await newcomer.start()
        assert await before.answer() == "before", "it finds them gone, and leaves"
        await newcomer.start()
        await newcomer.publish("t", message("new"))
        assert await before.answer() == "before"
    await newcomer.stop()
    with closing(sqlite3.connect(path)) as found:
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        values = sorted(bytes(value) for (value,) in found.execute("SELECT value FROM records"))
    assert values == [b"before", b"before", b"before", b"new"]


# case: O7
@ON_LINUX
async def test_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    url = f"sqlite+aiosqlite:///{path}"
    first = Database(url)
    await schema.upgrade(first)
    await first.stop()
    monkeypatch.setattr(sqlite_driver, "_ENTERED", set())  # as in a process that has just begun

    async def write(database: Database) -> None:
        async with database.transaction() as session:
            await events.record(session, [event(1)], NOW)

    with another_process(RECORDS, url) as before:
        assert await before.answer() == "open"
        path.with_name("ledger.db-wal").unlink()
        with monkeypatch.context() as patched:
            patched.setattr(database_module, "BUSY_TIMEOUT_S", 0.2)
            hasty = Database(url)
        with pytest.raises(LedgerLocked):
            await write(hasty)
        await hasty.stop()
        assert await before.answer() == "written", "it finds them gone, and leaves"
        newcomer = Database(url)
        await write(newcomer)
    await newcomer.stop()
    with closing(sqlite3.connect(path)) as found:
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert found.execute("SELECT count(*) FROM events").fetchone() == (2,)


@pytest.mark.parametrize("gone", ["-wal", "-shm"])
def test_one_that_goes_between_opening_and_looking_is_not_taken_for_what_comes_after(tmp_path: Path, gone: str) -> None:
    # case: I1, I2
    path, opened = tmp_path / "log.db", list[sqlite3.Connection]()

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(path, isolation_level=None))
        sqlite_file.use_wal(opened[-1], 1.0)
        if len(opened) == 1:
            path.with_name(f"{path.name}{gone}").unlink()
        return opened[-1]

    found, files = sqlite_file.entered(str(path), connect, 5.0)
    with closing(found):
        assert found is opened[1]
        found.execute("CREATE TABLE t (x)")
        assert files.is_whole()
    files.let_go()
