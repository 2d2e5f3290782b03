"""A disk that fills is told before it is full: a write-ahead file takes writes for a while longer than its disk."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from consumer.broker import EmbeddedBroker
from consumer.causes import of_disk
from consumer.cli.looking.disks import MIB, Disk, disks, judge_disk
from consumer.cli.looking.status_finding import Grade
from consumer.errors import (
    LedgerDiskFull,
    LedgerDiskReadOnly,
    LedgerNotOpened,
    LedgerReadOnly,
    LogDiskFull,
    LogDiskReadOnly,
)
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.settings import Role, load_settings
from tests.faults.scene import fill, remount, small_disk
from tests.support.desk import Desk

GIB = 1024 * MIB


# case: O9
@pytest.mark.parametrize(
    ("free", "total", "grades"),
    [
        (GIB, 100 * GIB, []),
        (GIB - 1, 100 * GIB, [Grade.DEGRADED]),
        (3 * MIB, 100 * GIB, [Grade.STUCK]),
        (103 * MIB, GIB, []),
        (102 * MIB, GIB, [Grade.DEGRADED]),
        (0, 0, []),
    ],
)
def test_by_what_is_left(free: int, total: int, grades: list[Grade]) -> None:
    found = judge_disk(Disk(path=Path("data/consumer.db"), code="ledger_disk_full", free=free, total=total))
    assert [one.grade for one in found] == grades
    assert all(one.code == "ledger_disk_full" and "MiB left" in one.text for one in found)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a small disk of its own."""
    folder = tmp_path / "disk"
    with small_disk(folder):
        if not os.path.ismount(folder):
            pytest.skip("a disk of its own is needed: mounting wants root")
        yield folder


def places_of(ledger: Path, log: Path) -> dict[str, str]:
    return {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{ledger}", "CONSUMER_BROKER_URL": f"embedded:{log}"}


async def writes(url: str) -> None:
    database = Database(url)
    try:
        async with database.transaction() as session:
            await session.execute(text("CREATE TABLE t (x)"))
    finally:
        await database.stop()


# case: O2, O9
def test_one_that_a_kernel_made_read_only_after_an_error_is_named_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mount says that it is writable: `status` called the database read-only, and advised to ask the primary."""
    ledger, log = tmp_path / "consumer.db", tmp_path / "log.db"
    ledger.touch()
    log.touch()
    settings = load_settings({"SVC_BASE_URL": "http://127.0.0.1:9", **places_of(ledger, log)}, Role.OPERATE)
    assert [one.is_read_only for one in disks(settings)] == [False, False]
    really = os.open

    def refused(path: os.PathLike[str], flags: int, *more: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return really(path, flags, *more)

    monkeypatch.setattr(os, "open", refused)
    assert [one.code for one in disks(settings)] == [LedgerDiskReadOnly.code, LogDiskReadOnly.code]
    assert of_disk(LedgerReadOnly(), ledger).code == LedgerDiskReadOnly.code
    assert sorted(tmp_path.iterdir()) == [ledger, log]


async def test_one_that_is_read_only_is_named_by_status_and_by_who_opens_a_file_there(disk: Path) -> None:
    # case: O2, O9
    ledger, log = disk / "consumer.db", disk / "log.db"
    places = places_of(ledger, log)
    database = Database(places["CONSUMER_DATABASE_URL"])
    await schema.upgrade(database)
    await database.stop()
    log.touch()
    remount(disk, writable=False)
    settings = load_settings({"SVC_BASE_URL": "http://127.0.0.1:9", **places}, Role.OPERATE)
    found = [finding for one in disks(settings) for finding in judge_disk(one)]
    told = [(one.grade, one.code) for one in found]
    assert told == [(Grade.STUCK, "ledger_disk_read_only"), (Grade.STUCK, "log_disk_read_only")]
    assert all("mount it writable" in one.text for one in found)
    for file in (log, log.with_name("other.db")):
        broker = EmbeddedBroker(file)
        with pytest.raises(LogDiskReadOnly) as refused:
            await broker.start()
        assert str(file) in refused.value.line()
        await broker.stop()
    for file in (ledger, ledger.with_name("other.db")):
        with pytest.raises(LedgerDiskReadOnly):
            await writes(f"sqlite+aiosqlite:///{file}")
    remount(disk, writable=True)
    await writes(places["CONSUMER_DATABASE_URL"])


async def test_one_that_is_full_is_named_by_who_opens_a_file_there(disk: Path) -> None:
    """Who is the first to open a file lays others beside it; SQLite calls it an I/O error where they have no room."""
    # case: O2, O9
    ledger, log = disk / "consumer.db", disk / "log.db"
    places = places_of(ledger, log)
    database, broker = Database(places["CONSUMER_DATABASE_URL"]), EmbeddedBroker(log)
    await schema.upgrade(database)
    await broker.start()
    await database.stop()
    await broker.stop()
    fill(disk)
    with pytest.raises(LedgerDiskFull) as refused:
        await schema.state(database)
    assert refused.value.fields == {"state": "SQLITE_IOERR_SHMSIZE", "path": str(ledger)}
    with pytest.raises(LogDiskFull):
        await broker.start()
    done = await asyncio.to_thread(Desk(places).call, "status")
    assert (done.returncode, "make room on the database's disk" in done.stdout) == (3, True), done.stdout
    (disk / "filler").unlink()
    assert (await schema.state(database)).is_current
    await database.stop()
    await broker.start()
    await broker.stop()


def test_of_files_that_are_there(tmp_path: Path) -> None:
    def found(**environ: str) -> list[str]:
        settings = load_settings({"SVC_BASE_URL": "http://127.0.0.1:9", **environ}, Role.OPERATE)
        return [one.code for one in disks(settings) if 0 < one.free < one.total]

    ledger, log = tmp_path / "consumer.db", tmp_path / "log.db"
    places = places_of(ledger, log)
    assert found(**places) == []
    ledger.touch()
    log.touch()
    assert found(**places) == ["ledger_disk_full", "log_disk_full"]
    servers = {"CONSUMER_DATABASE_URL": "postgresql+asyncpg://u:p@db/x", "CONSUMER_BROKER_URL": "kafka://k:9092"}
    assert found(**servers) == []


def test_a_disk_that_cannot_be_asked_is_not_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    # case: O9
    def refuse(_: object) -> object:
        raise PermissionError(13, "Permission denied")

    error = LedgerNotOpened(path="/nowhere/consumer.db")
    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", refuse)
        assert of_disk(error, Path("/nowhere/consumer.db")) is error
