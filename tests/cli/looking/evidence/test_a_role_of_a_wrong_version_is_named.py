"""A role of another version: beside a deploy that goes on it is no finding; left behind by one, or with tables that do
not suit it, it is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pytest
from sqlalchemy import Column, String, text

from consumer.app import App, heartbeat
from consumer.cli.looking.evidence.alive import alive
from consumer.cli.looking.status_finding import Grade
from consumer.console.alarms.lives import MIXED_FOR
from consumer.errors import SchemaIncompatible, SchemaOutdated
from consumer.ledger import Database, processes
from consumer.ledger.engine import branches
from consumer.ledger.engine.applied import SchemaWatch
from consumer.ledger.engine.branches import GROUP
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.processes import DIED, Process, Proof
from consumer.ledger.tables import SettledHintRow
from consumer.settings import Role, load_settings
from tests.support.desk import Desk
from tests.support.ports import eventually

NOW = datetime(2026, 5, 1, tzinfo=UTC)
S = timedelta(seconds=1)
OLD, NEW = "0.8.0", "0.9.0"


def living(role: str, version: str = NEW, *, up: timedelta = MIXED_FOR, **changes: Any) -> Process:
    one = Process(
        process=f"{role}-{version}-{up}",
        role=role,
        host="shop-1",
        pid=7,
        version=version,
        started_at=NOW - up,
        seen_at=NOW,
        ready=True,
        since=NOW - up,
    )
    return replace(one, **changes)


def codes(*lives: Process) -> list[str]:
    return [one.code for one in alive(lives, NOW, expected=None)]


# case: O9
def test_while_a_deploy_goes_on_two_versions_are_no_finding() -> None:
    steps = [living("serve", up=30 * S), living("work", OLD, up=timedelta(days=9)), living("sync", OLD)]
    assert codes(*steps) == []
    gone = living("work", OLD, up=2 * MIXED_FOR, stopped_at=NOW - 60 * S)
    assert codes(living("work"), gone) == []


# case: O9
def test_who_was_left_behind_by_a_deploy_is_named() -> None:
    left = living("sync", OLD, up=timedelta(days=9))
    [finding] = alive([living("serve"), living("work"), left], NOW, expected=None)
    assert (finding.code, finding.grade) == ("versions_differ", Grade.DEGRADED)
    assert "`sync` 0.8.0 (pid 7 on shop-1)" in finding.text
    assert "`work`" not in finding.text.partition(";")[0], "it is as it should be"


def test_after_a_rollback_the_version_that_was_rolled_back_is_the_one_left() -> None:
    [finding] = alive([living("work", OLD), living("work", NEW, up=2 * MIXED_FOR)], NOW, expected=None)
    assert "left behind: `work` 0.9.0" in finding.text


def test_of_many_that_were_left_some_are_named() -> None:
    many = [living("work", OLD, up=2 * MIXED_FOR + n * S) for n in range(9)]
    [finding] = alive([living("serve"), *many], NOW, expected=None)
    assert " and 4 more;" in finding.text


# case: O9
def test_one_that_died_of_its_version_is_missed_at_once_and_says_so() -> None:
    said = {DIED: f"{SchemaIncompatible.code}: The database lacks what this version needs (runs.older)"}
    [finding] = alive([living("work", OLD, said=said)], NOW, expected=None)
    assert (finding.code, finding.grade) == ("no_work", Grade.STUCK)
    assert f"version {OLD}, it died: schema_incompatible: The database lacks" in finding.text


def _waiting(began: int, ended: int, code: str = SchemaOutdated.code) -> Process:
    return living("work", up=began * S, seen_at=NOW - ended * S, said={DIED: f"{code}: …"})


# case: O9
def test_a_new_version_that_waits_for_its_migration_is_no_crash_loop_at_first() -> None:
    old = living("work", OLD, up=timedelta(days=9))
    few = [_waiting(200, 199), _waiting(150, 149), _waiting(90, 89)]
    assert codes(old, *few) == []
    assert codes(*few) == ["no_work", "role_restarts"], "nobody goes on"
    assert codes(old, *few, _waiting(310, 309)) == ["role_restarts"], "for longer than a step of a deploy takes"
    other = [_waiting(200, 199, "settings_invalid"), _waiting(150, 149), _waiting(90, 89)]
    assert codes(old, *other) == ["role_restarts"], "it died of something else, too"


# case: O9
async def test_a_role_that_runs_says_that_the_tables_were_migrated_away_from_it(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_EVERY_S", 0.1)
    async with older_code(environ) as database, running(environ):
        await eventually(lambda: _is_ready(database), within_s=60)
        assert SchemaIncompatible.code not in await _told(database)
        await migrate(database)

        async def is_named() -> bool:
            return await _told(database) == {SchemaIncompatible.code: Grade.STUCK}

        await eventually(is_named, within_s=30, every_s=0.2)


# case: O9
async def test_a_plugin_that_is_installed_beside_a_role_that_runs_is_none_of_its(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path is none of this process's: an editable install, or another environment's site."""
    watch = SchemaWatch()
    async with sqlite_ledger.transaction() as session:
        await watch.look(session)
        installed = [*entry_points(group=GROUP), EntryPoint(name="loyalty", value="not_here.migrations", group=GROUP)]
        monkeypatch.setattr(branches, "entry_points", lambda group: installed)
        await session.execute(
            text("INSERT INTO revisions (id, applied_at) VALUES ('loyalty_0001', '2026-01-01 00:00:00')")
        )
        await watch.look(session)
    assert watch.refusal() is None


# case: O9
async def test_one_that_cannot_be_imported_keeps_nobody_from_telling_what_lacks(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role's own tables were migrated away from it, and a plugin was installed that is none of its."""
    watch = SchemaWatch()
    async with older_code(environ) as database:
        async with database.reading() as session:
            await watch.look(session)
        await migrate(database)
        installed = [*entry_points(group=GROUP), EntryPoint(name="loyalty", value="not_here.migrations", group=GROUP)]
        monkeypatch.setattr(branches, "entry_points", lambda group: installed)
        async with database.reading() as session:
            await watch.look(session)
    assert isinstance(watch.refusal(), SchemaIncompatible)


# case: O9
async def test_one_that_waits_for_its_migration_says_that_and_the_command(environ: dict[str, str]) -> None:
    """The tables lack what it needs, as they would if a newer version had taken it away."""
    watch = SchemaWatch()
    async with older_code(environ) as database:
        async with database.transaction() as session:
            await session.execute(text(f"ALTER TABLE {SettledHintRow.__tablename__} DROP COLUMN older"))
            await session.execute(text("DELETE FROM revisions WHERE id = 'ledger_0026'"))
        async with database.reading() as session:
            await watch.look(session)
    refusal = watch.refusal()
    assert isinstance(refusal, SchemaOutdated)
    proof = Proof(code=refusal.code, reason=refusal.sentence())
    [finding] = alive([living("work", checks={"schema": proof})], NOW, expected=None)
    assert finding.code == "schema_outdated"
    assert "1 of 1 `work` cannot go on before the migration of their version (0.9.0) was run" in finding.text
    assert "run `consumer db upgrade`" in finding.text


@asynccontextmanager
async def running(environ: dict[str, str]) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with App(load_settings(environ, Role.WORK)) as app:
        await app.work()
        task = asyncio.create_task(app.run(stop))
        try:
            yield
        finally:
            stop.set()
            await task


@asynccontextmanager
async def older_code(environ: dict[str, str]) -> AsyncIterator[Database]:
    """This process is of a version that has a column more, which the ledger has still."""
    assert (await asyncio.to_thread(Desk(environ).call, "db", "upgrade")).returncode == 0
    table, database = SettledHintRow.__table__, Database(environ["CONSUMER_DATABASE_URL"])
    async with database.transaction() as session:
        await session.execute(text(f"ALTER TABLE {table.name} ADD COLUMN older VARCHAR(10)"))
    older = Column("older", String(10))
    table.append_column(older)
    try:
        yield database
    finally:
        table._columns.remove(older)  # SQLAlchemy has no way back
        await database.stop()


async def migrate(database: Database) -> None:
    """As the next version does."""
    async with database.transaction() as session:
        await session.execute(text(f"ALTER TABLE {SettledHintRow.__tablename__} DROP COLUMN older"))
        await session.execute(text("INSERT INTO revisions (id, applied_at) VALUES ('ledger_9999', '2026-05-01')"))


async def _is_ready(database: Database) -> bool:
    async with database.reading() as session:
        return any(one.ready for one in await processes.listed(session))


async def _told(database: Database) -> dict[str, Grade]:
    """What `status` makes of it."""
    async with database.reading() as session:
        found = alive(await processes.listed(session), await shared_time(session), expected=("work",))
    return {one.code: one.grade for one in found}
