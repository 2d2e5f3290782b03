"""`CONSUMER_RETENTION`: once a day `sync` archives what is old, one process of several; what hinders it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from consumer.app.upkeep import retention
from consumer.app.upkeep.retention import Retention
from consumer.archive.prune import Prune, Pruned
from consumer.clock import SystemClock
from consumer.errors import ArchiveWaits
from consumer.ledger import Database
from consumer.ledger.archiving import passes
from consumer.telemetry.metrics import Metrics
from tests.archive.old_shop import EVENTS, rows
from tests.archive.test_nothing_is_lost_however_it_ends import filled
from tests.support.desk import Desk
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended

DAY = timedelta(days=1)


@asynccontextmanager
async def running(database: Database, folder: Path, holder: str) -> AsyncIterator[Metrics]:
    stop, metrics = asyncio.Event(), Metrics()
    daily = Retention(database, folder=folder, age=DAY, holder=holder, clock=SystemClock(), metrics=metrics)
    task = asyncio.create_task(daily.run(stop))
    try:
        yield metrics
    finally:
        stop.set()
        await asyncio.wait_for(task, 20)


async def last(database: Database) -> passes.LastPass:
    async with database.reading() as session:
        return await passes.load(session)


# case: B35
async def test_two_processes_and_one_pass(database: Database, tmp_path: Path) -> None:
    await filled(database, 400)
    folder = tmp_path / "kept"

    async def done() -> bool:
        return (await last(database)).done_at is not None

    async with running(database, folder, "one") as one, running(database, folder, "two") as two:
        await eventually(done, within_s=30)
    archived = [metrics.registry.get_sample_value("consumer_archived_events_total") for metrics in (one, two)]
    assert sorted(archived, key=float) == [0, 400]  # type: ignore[arg-type]  # neither is None
    first = await last(database)
    async with running(database, folder, "three"):
        await asyncio.sleep(0)
    assert await last(database) == first, "the next one is due tomorrow"


async def test_a_last_pass_of_a_time_to_come_keeps_none_waiting(sqlite_ledger: Database, tmp_path: Path) -> None:
    """The clock was ahead when it ended, and was set back."""
    ahead = datetime.now(UTC) + 400 * DAY
    async with sqlite_ledger.transaction() as session:
        await passes.keep(session, passes.LastPass(began_at=ahead, done_at=ahead))

    async def done() -> bool:
        return (await last(sqlite_ledger)).done_at != ahead

    async with running(sqlite_ledger, tmp_path / "kept", "one"):
        await eventually(done, within_s=30)


async def test_a_folder_that_cannot_be_written_is_told(sqlite_ledger: Database, tmp_path: Path) -> None:
    await filled(sqlite_ledger, 50)
    (tmp_path / "kept").write_text("a file")
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"})

    async def failed() -> bool:
        return (await last(sqlite_ledger)).code == "archive_unwritable"

    async with running(sqlite_ledger, tmp_path / "kept", "one") as metrics:
        await eventually(failed, within_s=30)
        await eventually(lambda: metrics.registry.get_sample_value("consumer_archive_failing") == 1)
    assert all(row["archive"] is None for row in await rows(sqlite_ledger, EVENTS))
    said = await asyncio.to_thread(desk.call, "status", "--json")
    assert '"archive_failing"' in said.stdout


@pytest.mark.parametrize("hangs", [True, False])
async def test_that_no_pass_comes_to_its_end_is_told(
    sqlite_ledger: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """One hangs, in a folder on a server that is away; or each waits for a plan that was left half applied."""

    async def never(_: Prune, before: object) -> Pruned:
        if not hangs:
            raise ArchiveWaits
        await asyncio.Event().wait()
        return Pruned()

    as_it_is = Prune.run
    monkeypatch.setattr(Prune, "run", never)
    monkeypatch.setattr(retention, "LOOK_EVERY_S", 0.05)
    ago = datetime.now(UTC) - retention.LATE
    async with sqlite_ledger.transaction() as session:
        await passes.keep(session, passes.LastPass(began_at=ago + timedelta(seconds=2)))

    async def told() -> bool:
        return (await last(sqlite_ledger)).code == "archive_not_ended"

    async with running(sqlite_ledger, tmp_path / "kept", "one") as metrics:
        await eventually(told, within_s=30)
        await eventually(lambda: metrics.registry.get_sample_value("consumer_archive_failing") == 1)
        monkeypatch.setattr(Prune, "run", as_it_is)

    async def over() -> bool:
        return (await last(sqlite_ledger)).code is None

    async with running(sqlite_ledger, tmp_path / "kept", "two"):
        await eventually(over, within_s=30)


@pytest.mark.slow
async def test_sync_does_it(sqlite_ledger: Database, tmp_path: Path) -> None:
    await filled(sqlite_ledger, 300)
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db",
        "CONSUMER_BROKER_URL": f"embedded:///{tmp_path}/log.db",
        "CONSUMER_INTERNAL_PORT": "0",
        "CONSUMER_RETENTION": "30d",
        "CONSUMER_ARCHIVE_DIR": str(tmp_path / "kept"),
        "SVC_BASE_URL": "http://127.0.0.1:9",
        "SVC_APP_ID": "svc_app_1",
        "SVC_APP_SECRET": "svc_sk_live_1",
    }
    process = ConsumerProcess("sync", environ=environ, folder=tmp_path)

    async def gone() -> bool:
        return all(row["archive"] for row in await rows(sqlite_ledger, EVENTS))

    with ended(process):
        process.spawn()
        await eventually(gone, within_s=60)
        assert process.stop() == 0
