"""What was exported is enough: an empty database with the archives and the trail has the same decisions, derived again,
and tells nobody anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import events
from consumer.ledger.tables import AuditRow
from tests.access.test_rebuild import OURS
from tests.archive.old_shop import EVENTS, OUTBOX, RUNS, decisions, opened, rows
from tests.contract.ledger.facts import NOW, event
from tests.support.desk import Desk

AUDIT = AuditRow.__table__


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/new.db"
    return str(request.getfixturevalue("postgres_url"))


async def exported(desk: Desk, folder: Path) -> list[str]:
    """Bodies that were pruned, the others, and the trail."""
    await asyncio.to_thread(desk.ask, "prune", "--older-than", "1d", "--archive", str(folder))
    await asyncio.to_thread(desk.ask, "events", "export", "--archive", str(folder))
    await asyncio.to_thread(desk.ask, "audit", "export", str(folder / "trail.jsonl"))
    return [str(one) for one in await asyncio.to_thread(lambda: sorted(folder.iterdir()))]


async def told(database: Database) -> list[Any]:
    return [(row["event_id"], row["type"], row["published_at"]) for row in await rows(database, OUTBOX)]


# case: G9, G12
async def test_the_same_decisions_and_nobody_is_told(sqlite_ledger: Database, tmp_path: Path, empty_url: str) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        files = await exported(shop.desk, tmp_path / "kept")
        decided, was_told = await shop.decisions(), await told(sqlite_ledger)
        ran = [(row["event_id"], row["handler"], row["status"]) for row in await shop.rows(RUNS)]
    database, desk = Database(empty_url), Desk({"CONSUMER_DATABASE_URL": empty_url})
    try:
        await schema.upgrade(database)
        found = await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files)
        assert found["events"] == len(await rows(database, EVENTS)) > 10
        assert [(one["event_id"], one["handler"], one["status"]) for one in await rows(database, RUNS)] == ran
        assert await told(database) == was_told
        await asyncio.to_thread(desk.ask, "rebuild", "all", "--yes")
        assert await decisions(database) == decided
        assert await told(database) == was_told, "nothing goes out"
        again = await asyncio.to_thread(desk.ask, "events", "import", "--missing", *files[:-1])
        assert (again["events"], again["bodies"], again["missing"]) == (0, 0, 0)
        await asyncio.to_thread(desk.ask, "audit", "export", str(tmp_path / "again.jsonl"))
        assert (await asyncio.to_thread(desk.ask, "audit", "verify", str(tmp_path / "again.jsonl")))["verified"]
        async with database.transaction() as session:
            new = await events.record(session, [event("new")], NOW)
        assert min(new.values()) > max(one["seq"] for one in await rows(database, EVENTS) if one["id"] != "evt_new")
    finally:
        await database.stop()


# case: G9
async def test_another_ledgers_archive_is_refused(sqlite_ledger: Database, tmp_path: Path) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        files = await exported(shop.desk, tmp_path / "kept")
    url = f"sqlite+aiosqlite:///{tmp_path}/other.db"
    database, desk = Database(url), Desk({"CONSUMER_DATABASE_URL": url})
    try:
        await schema.upgrade(database)
        async with database.transaction() as session:
            await events.record(session, [event(f"own{number}") for number in range(5)], NOW)
        archives = [one for one in files if one.endswith(".gz")]
        done = await asyncio.to_thread(desk.call, "events", "import", *archives)
        assert (done.returncode, "--missing" in done.stdout) == (1, True)
        refused = await asyncio.to_thread(desk.ask, "events", "import", "--missing", *archives, code=1)
        assert "error[archive_foreign]" in refused
        assert len(await rows(database, EVENTS)) == 5, "nothing of it came in"
        async with database.transaction() as session:
            await session.execute(delete(AUDIT))
        assert all([not await rows(database, table) for table in OURS])
    finally:
        await database.stop()


# case: G12
async def test_a_trail_goes_into_an_empty_ledger_only(sqlite_ledger: Database, tmp_path: Path) -> None:
    async with opened(sqlite_ledger, f"sqlite+aiosqlite:///{tmp_path}/ledger.db") as shop:
        files = await exported(shop.desk, tmp_path / "kept")
        refused = await asyncio.to_thread(shop.desk.ask, "events", "import", files[-1], code=1)
        assert "error[archive_foreign]" in refused
        assert "empty ledger" in refused
