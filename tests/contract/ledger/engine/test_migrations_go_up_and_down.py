"""Migrations: they make what the models say, on both databases, once, whoever runs them, and can be taken back."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, inspect, text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Mapper
from sqlmodel import SQLModel

from consumer.errors import MigrationFailed, SchemaOutdated
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.engine.applied import lacks_nothing
from consumer.ledger.engine.branches import not_run
from tests.support.merchant.plugin import install_migrations
from tests.support.postgres import copy_database

MODELS = (
    "consumer.ledger.tables",
    "consumer.ledger.plans.tables",
    "handlers.fulfilment.tables",
    "handlers.access.tables",
)
SHIPPED = {"ledger", "fulfilment", "access"}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated database of each kind of the test's own, because some of these tests migrate it further."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "ledger.db")
        return f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    return copy_database(request.getfixturevalue("postgres_base"), request.getfixturevalue("postgres_template"))


def models() -> MetaData:
    """The tables that the shipped models declare; tables of tests' own plugins are in SQLModel's metadata too."""
    for module in MODELS:
        import_module(module)
    mappers: list[Mapper[Any]] = list(SQLModel._sa_registry.mappers)
    found = MetaData()
    for mapper in mappers:
        module = mapper.class_.__module__
        if module.startswith(("consumer.", "handlers.")) and not module.startswith("handlers.template."):
            mapper.local_table.to_metadata(found)  # type: ignore[attr-defined]  # a mapped class has a Table here
    assert len(found.tables) > 20
    return found


def facts(connection: Connection) -> dict[str, Any]:
    """What a database says about its tables, so that two can be compared."""
    seen = inspect(connection)
    found: dict[str, Any] = {}
    for table in sorted(seen.get_table_names()):
        if table == "alembic_version":
            continue
        found[table] = {
            "columns": {
                one["name"]: (str(one["type"]), one["nullable"], one["default"]) for one in seen.get_columns(table)
            },
            "key": seen.get_pk_constraint(table)["constrained_columns"],
            "unique": sorted((str(one["name"]), one["column_names"]) for one in seen.get_unique_constraints(table)),
            "indexes": sorted(
                (str(one["name"]), one["column_names"], bool(one["unique"]), _where(one))
                for one in seen.get_indexes(table)
                if "duplicates_constraint" not in one
            ),
        }
    return found


def _where(index: Any) -> str:
    options = index.get("dialect_options", {})
    said = str(next((options[name] for name in ("postgresql_where", "sqlite_where") if name in options), ""))
    return said.strip("()").replace("::text", "").replace("(", "").replace(")", "")


async def told(database: Database) -> dict[str, Any]:
    async with database.engine.connect() as connection:
        return await connection.run_sync(facts)


def differences(connection: Connection) -> list[Any]:
    options = {
        "compare_type": True,
        "compare_server_default": connection.dialect.name == "postgresql",  # SQLite's are compared below, as they stand
        "user_module_prefix": "consumer.columns.",
    }
    context = MigrationContext.configure(connection, opts=options)
    return list(compare_metadata(context, models()))


async def test_models_and_migrations_do_not_differ(database: Database) -> None:
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


@pytest.fixture
def bare_url(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> str:
    """An empty database of the same kind."""
    is_file = database_url.startswith("sqlite")
    return f"sqlite+aiosqlite:///{tmp_path}/bare.db" if is_file else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def bare(bare_url: str) -> AsyncIterator[Database]:
    """Beside the migrated database one without a table."""
    found = Database(bare_url)
    yield found
    await found.stop()


async def test_a_migrated_database_is_what_the_models_would_create(database: Database, bare: Database) -> None:
    """Also where autogenerate does not look: the conditions of partial indexes, the order of keys."""
    async with bare.engine.begin() as connection:
        await connection.run_sync(models().create_all)
    assert await told(database) == await told(bare)


def test_every_branch_has_one_head_and_its_own_label() -> None:
    scripts = ScriptDirectory.from_config(schema.alembic_config())
    assert set(schema.branches()) >= SHIPPED
    labels = [sorted(scripts.get_revision(head).branch_labels) for head in scripts.get_heads()]
    assert sorted(label for one in labels for label in one) == sorted(schema.branches())
    assert all(len(one) == 1 for one in labels), "a branch with two heads cannot be upgraded"


async def test_a_second_upgrade_changes_nothing(database: Database) -> None:
    before = await told(database)
    state = await schema.upgrade(database)
    assert state.is_current
    assert state.current == state.wanted
    assert await told(database) == before


async def test_an_upgrade_from_nothing(empty: Database) -> None:
    assert not (await schema.state(empty)).current
    state = await schema.upgrade(empty)
    assert state.is_current
    await schema.require_current(empty)


async def test_upgrades_at_once_in_one_process(empty: Database, empty_url: str) -> None:
    second = Database(empty_url)
    try:
        states = await asyncio.gather(schema.upgrade(empty), schema.upgrade(second))
    finally:
        await second.stop()
    assert all(state.is_current for state in states)


@pytest.mark.slow
async def test_upgrades_at_once_by_several_processes(empty: Database, empty_url: str) -> None:
    """As several replicas that start together do it."""
    environ = {"CONSUMER_DATABASE_URL": empty_url, "PATH": "/usr/bin:/bin"}
    upgrades = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "consumer", "db", "upgrade", env=environ, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        for _ in range(3)
    ]  # fmt: skip
    ended = await asyncio.gather(*(one.communicate() for one in upgrades))
    assert [one.returncode for one in upgrades] == [0, 0, 0], ended
    assert (await schema.state(empty)).is_current


async def test_an_upgrade_that_fails_leaves_the_schema_as_it_was(
    empty: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All branches in one transaction: a plugin's broken migration does not leave half of the others behind."""
    with installed(tmp_path, monkeypatch, "broken_plugin", "raise RuntimeError('the migration is broken')"):
        with pytest.raises(MigrationFailed) as caught:
            await schema.upgrade(empty)
        assert str(caught.value.__cause__) == "the migration is broken"
        assert await told(empty) == {}
        assert not (await schema.state(empty)).current
    await schema.upgrade(empty)


async def test_every_migration_can_be_taken_back(empty: Database) -> None:
    """Down to nothing and up again: the same schema, and no table left over on the way."""

    def down(connection: Connection) -> None:
        config = schema.alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")

    await schema.upgrade(empty)
    before = await told(empty)
    async with empty.engine.begin() as connection:
        await connection.run_sync(down)
    assert await told(empty) == {}
    with pytest.raises(SchemaOutdated):
        await schema.require_current(empty)
    await schema.upgrade(empty)
    assert await told(empty) == before


# --- plugins' branches -------------------------------------------------------------------------------------------


class installed:  # noqa: N801 - reads as a word: with installed(...)
    """A plugin with a branch of migrations of its own, for as long as the block lasts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, upgrade: str) -> None:
        self._name = name
        self._patch = monkeypatch
        self._path = install_migrations(folder, name, upgrade)

    def __enter__(self) -> None:
        self._patch.syspath_prepend(self._path)

    def __exit__(self, *_: object) -> None:
        sys.path.remove(self._path)
        for module in [one for one in sys.modules if one.partition(".")[0] == self._name]:
            del sys.modules[module]


@pytest.fixture
def loyalty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A plugin that brings the table `loyalty_point`."""
    create = 'op.create_table("loyalty_point", sa.Column("id", sa.Integer(), primary_key=True))'
    with installed(tmp_path, monkeypatch, "loyalty_plugin", create):
        yield


@pytest.mark.usefixtures("loyalty")
async def test_a_plugins_branch_is_found_and_applied(empty: Database) -> None:
    assert set(schema.branches()) >= SHIPPED | {"loyalty_plugin"}
    state = await schema.upgrade(empty)
    assert "loyalty_plugin_0001" in state.current
    assert "loyalty_point" in await told(empty)


async def test_a_plugin_that_came_later_asks_for_an_upgrade_and_gets_it(
    database: Database, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("loyalty")  # after the ledger was made
    with pytest.raises(SchemaOutdated) as caught:
        await schema.require_current(database)
    assert caught.value.fields == {"missing": "loyalty_plugin_0001"}
    await schema.upgrade(database)
    await schema.require_current(database)


# case: O9
async def test_a_database_that_is_ahead_is_fine(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expand first, contract later: the version before still runs while the next one is rolled out."""
    with installed(tmp_path, monkeypatch, "newer_plugin", "pass"):
        await schema.upgrade(database)
    found = await schema.state(database)
    assert "newer_plugin_0001" in found.current - found.wanted
    await schema.require_current(database)


@pytest.fixture
def code_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Turns this code into that of the release before: its ledger's branch lacks the newest revision."""

    def turn() -> None:
        found = dict(schema.branches())
        older = tmp_path / "older" / "versions"
        shutil.copytree(found["ledger"], older)
        newest = max(older.glob("0*.py"))
        newest.unlink()
        monkeypatch.setattr(schema, "branches", lambda: {**found, "ledger": older})

    return turn


# case: O9
async def test_code_that_is_older_than_the_database_starts_and_may_upgrade(
    database: Database, code_before: Callable[[], None]
) -> None:
    """A rolling deploy migrates first: a process of the version before that starts (again) after that still works."""
    before, newest = await told(database), await schema.state(database)
    code_before()
    await schema.require_current(database)
    state = await schema.state(database)
    assert state.is_current
    assert state.wanted - state.current == {one for one in state.wanted if one.startswith("ledger_")}
    assert (await schema.upgrade(database)).current == newest.current
    assert await told(database) == before


# case: O9
async def test_older_code_on_a_newer_database_still_adds_what_its_plugins_lack(
    database: Database, code_before: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = 'op.create_table("late_point", sa.Column("id", sa.Integer(), primary_key=True))'
    with installed(tmp_path, monkeypatch, "late_plugin", create):
        code_before()
        with pytest.raises(SchemaOutdated):
            await schema.require_current(database)
        state = await schema.upgrade(database)
        assert state.is_current
        assert "late_plugin_0001" in state.current
        assert "late_point" in await told(database)


# case: O9, H7
async def test_a_plugin_that_is_gone_leaves_its_tables_and_hinders_no_upgrade(
    empty: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = 'op.create_table("gone_point", sa.Column("id", sa.Integer(), primary_key=True))'
    with installed(tmp_path, monkeypatch, "gone_plugin", create):
        await schema.upgrade(empty)
    state = await schema.upgrade(empty)
    assert state.is_current
    assert "gone_plugin_0001" in state.current - state.wanted
    assert "gone_point" in await told(empty)
    shutil.rmtree(tmp_path / "gone_plugin")
    shutil.rmtree(tmp_path / "gone_plugin-1.0.dist-info")
    with installed(tmp_path, monkeypatch, "gone_plugin", create):
        assert (await schema.upgrade(empty)).is_current, "it comes back, and its table is there already"


async def test_a_database_from_before_revisions_were_noted_is_upgraded(database: Database) -> None:
    """Then all there is to go by is what Alembic keeps."""
    async with database.transaction() as session:
        await session.execute(text("DELETE FROM revisions"))
    await schema.require_current(database)
    await schema.upgrade(database)
    scripts = ScriptDirectory.from_config(schema.alembic_config())
    async with database.reading() as session:
        noted = set(await session.scalars(text("SELECT id FROM revisions")))
    assert noted == {one.revision for one in scripts.walk_revisions()}


async def test_what_is_taken_back_is_not_applied_any_more(empty: Database) -> None:
    def down(connection: Connection) -> None:
        config = schema.alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "access@base")

    await schema.upgrade(empty)
    async with empty.engine.begin() as connection:
        await connection.run_sync(down)
    state = await schema.state(empty)
    assert {one.rpartition("_")[0] for one in state.missing} == {"access"}
    assert not {one for one in state.applied if one.startswith("access")}
    assert (await schema.upgrade(empty)).is_current


# case: H8
@pytest.mark.parametrize("file", ["__init__.py", "migrations/__init__.py"])
async def test_a_plugin_that_cannot_be_imported_has_its_branch_all_the_same(
    empty: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    """What it would print is not printed, either: its code is not run to find the folder."""
    create = 'op.create_table("torn_point", sa.Column("id", sa.Integer(), primary_key=True))'
    with installed(tmp_path, monkeypatch, "torn_plugin", create):
        (tmp_path / "torn_plugin" / file).write_text("print('hello')\nraise ImportError('not here')")
        await schema.upgrade(empty)
        assert await lacks_nothing(empty)
        await schema.require_current(empty)
    assert not_run() == []
    assert "torn_point" in await told(empty)
    assert "hello" not in capsys.readouterr().out


# case: H8, H7
async def test_a_branch_that_is_nowhere_is_left_out_and_told(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed(tmp_path, monkeypatch, "torn_plugin", "pass"):
        await schema.upgrade(database)
        shutil.rmtree(tmp_path / "torn_plugin" / "migrations")
        (tmp_path / "torn_plugin" / "migrations.py").write_text("raise ImportError('not here')")
        assert "torn_plugin" not in schema.branches()
        ((label, reason),) = [(one.label, one.reason) for one in not_run()]
        assert await lacks_nothing(database)
        assert "torn_plugin_0001" in (await schema.upgrade(database)).current, "what was run stays"
    assert label == "torn_plugin"
    assert reason.endswith("no package: torn_plugin 1.0 (torn_plugin.migrations)")


def test_a_branch_in_a_namespace_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with installed(tmp_path, monkeypatch, "spaced_plugin", "pass"):
        for file in ("__init__.py", "migrations/__init__.py"):
            (tmp_path / "spaced_plugin" / file).unlink()
        assert schema.branches()["spaced_plugin"] == tmp_path / "spaced_plugin" / "migrations" / "versions"


# case: H8
async def test_of_two_packages_with_one_branch_neither_is_run(
    empty: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        installed(tmp_path / "a", monkeypatch, "first_plugin", "pass"),
        installed(tmp_path / "b", monkeypatch, "second_plugin", "pass"),
    ):
        second = tmp_path / "b" / "second_plugin-1.0.dist-info" / "entry_points.txt"
        second.write_text("[consumer.migrations]\nfirst_plugin = second_plugin.migrations\n")
        state = await schema.upgrade(empty)
        (found,) = not_run()
    assert state.is_current
    assert not {one for one in state.applied if "plugin" in one}
    assert "first_plugin 1.0 (first_plugin.migrations) and second_plugin 1.0 (second_plugin.migrations)" in found.reason


@pytest.mark.parametrize("taken", ["ledger", "access"])
def test_nobody_takes_the_place_of_a_built_in_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    before = schema.branches()[taken]
    with installed(tmp_path, monkeypatch, "taking_plugin", "pass"):
        entries = tmp_path / "taking_plugin-1.0.dist-info" / "entry_points.txt"
        entries.write_text(f"[consumer.migrations]\n{taken} = taking_plugin.migrations\n")
        assert schema.branches()[taken] == before
        assert [(one.label, set(one.packages)) for one in not_run()] == [(taken, {"taking_plugin"})]
