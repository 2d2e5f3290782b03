"""What SQLite refuses of the embedded log's file is told by our own code, and by its."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from consumer.broker import EmbeddedBroker, TopicConfig
from consumer.broker.embedded.file import LogFile
from consumer.causes import cure_of
from consumer.errors import BrokerError, LogDiskFailing, LogLocked, LogNotOpened, LogReadOnly
from tests.contract.broker.conftest import message
from tests.support.throttle import no_file_beyond


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[LogFile]:
    """An open log with a topic of 100 records."""
    broker = EmbeddedBroker(tmp_path / "log.db")
    await broker.start()
    await broker.ensure_topics([TopicConfig(name="t", partitions=1, retention_s=None, max_record_bytes=100_000)])
    await broker.publish_many("t", [message(str(number)) for number in range(100)])
    assert broker._file is not None
    yield broker._file
    await broker.stop()


async def refused(file: LogFile, run: Callable[[sqlite3.Connection], object]) -> tuple[type[BrokerError], object]:
    with pytest.raises(BrokerError) as told:
        await file.write(run, timeout_s=5)
    return type(told.value), told.value.fields["reason"]


# cause: log SQLITE_READONLY
async def test_a_file_that_takes_no_write(file: LogFile) -> None:
    def write(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA query_only = 1")
        connection.execute("DELETE FROM records")

    assert await refused(file, write) == (LogReadOnly, "SQLITE_READONLY")


# case: I2
# cause: log SQLITE_IOERR
async def test_a_disk_that_answers_with_an_input_output_error(file: LogFile) -> None:
    """It was told as a broker that is not available, without a cure."""

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS large (x)")
        connection.execute("INSERT INTO large VALUES (zeroblob(1000000))")

    with no_file_beyond(200_000):
        assert await refused(file, write) == (LogDiskFailing, "SQLITE_IOERR_WRITE")
    assert "kernel's log" in (cure_of(LogDiskFailing.code) or "")
    await file.write(write, timeout_s=5)


# cause: log SQLITE_LOCKED
async def test_a_table_that_this_process_still_reads(file: LogFile) -> None:
    def drop(connection: sqlite3.Connection) -> None:
        reading = connection.execute("SELECT * FROM records")
        reading.fetchone()
        connection.execute("DROP TABLE records")

    assert await refused(file, drop) == (LogLocked, "SQLITE_LOCKED")


# cause: log SQLITE_CANTOPEN
async def test_a_file_beside_it_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "log.db-journal").mkdir()
    with pytest.raises(LogNotOpened) as told:
        await EmbeddedBroker(tmp_path / "log.db").start()
    assert told.value.fields["reason"] == "SQLITE_CANTOPEN"
