"""`db current` and `db upgrade` exit 0 only where the schema gives what this version needs; it says which is newer."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.desk import Desk
from tests.support.merchant.plugin import install_migrations, install_package


# case: O9
def test_a_newer_version_that_only_added_something(desk: Desk, environ: dict[str, str]) -> None:
    assert desk.call("db", "upgrade").returncode == 0
    changed(environ, "UPDATE alembic_version SET version_num = 'ledger_0099' WHERE version_num LIKE 'ledger_%'")
    done = desk.call("db", "current")
    assert (done.returncode, "up to date" in done.stdout) == (0, False)
    assert "newer, compatible: unknown to this version: ledger_0099" in done.stdout
    assert desk.ask("db", "current")["state"] == "newer_compatible"
    changed(environ, "ALTER TABLE hints RENAME COLUMN attempts TO denials")
    done = desk.call("db", "current")
    assert (done.returncode, "incompatible: this version needs hints.attempts" in done.stdout) == (1, True)


# case: H7
def test_a_plugin_that_is_gone_leaves_its_revision_and_harms_nobody(desk: Desk, environ: dict[str, str]) -> None:
    assert desk.call("db", "upgrade").returncode == 0
    changed(environ, "INSERT INTO alembic_version VALUES ('gone_plugin_0001')")
    done = desk.call("db", "current")
    assert (done.returncode, "up to date" in done.stdout) == (0, True)


# case: O9, H7
@pytest.mark.parametrize("column", ["fulfilment_order.requested_at", "access_subscription.price_id"])
@pytest.mark.usefixtures("upgraded")
def test_the_tables_of_built_in_plugins_are_compared_too(consumer: Run, environ: dict[str, str], column: str) -> None:
    table, name = column.split(".")
    changed(environ, f"ALTER TABLE {table} RENAME COLUMN {name} TO was_{name}")
    done = consumer("db", "current")  # a process of its own: nobody has loaded the plugins' tables yet
    assert (done.returncode, f"incompatible: this version needs {column}" in done.stdout) == (1, True), done.stdout


# case: O9
def test_an_upgrade_that_does_not_fit(desk: Desk, environ: dict[str, str]) -> None:
    assert desk.call("db", "upgrade").returncode == 0
    changed(environ, "ALTER TABLE hints RENAME COLUMN attempts TO denials")
    done = desk.call("db", "upgrade")
    assert (done.returncode, "incompatible: this version needs" in done.stdout) == (1, True)


# case: O9
@pytest.mark.slow
def test_a_table_of_a_built_in_plugin_that_is_gone_is_told_too(consumer: Run, environ: dict[str, str]) -> None:
    """In a process of its own: what others imported would be known to this one."""
    assert consumer("db", "upgrade").returncode == 0
    for table in ("fulfilment_order", "access_customer"):
        changed(environ, f"ALTER TABLE {table} RENAME TO elsewhere")
        for word in ("current", "upgrade"):
            done = consumer("db", word)
            assert (done.returncode, f"incompatible: this version needs {table}" in done.stdout) == (1, True)
        changed(environ, f"ALTER TABLE elsewhere RENAME TO {table}")
    assert consumer("db", "current").returncode == 0


# case: H1, O9
@pytest.mark.parametrize(
    ("upgrade", "line", "reason"),
    [
        ('op.execute("ALTER TABLE nowhere ADD COLUMN x INTEGER")', 8, "OperationalError"),
        ('op.create_table("half", sa.Column("id", sa.Integer())); raise RuntimeError("no way")', 8, "RuntimeError"),
        ("pass\n)", 9, "SyntaxError"),
        ("pass\nimport nowhere_at_all", 9, "ModuleNotFoundError"),
        ("raise SystemExit(4)", 8, "SystemExit"),
        ("pass\nraise SystemExit(4)", 9, "SystemExit"),
    ],
)
def test_a_plugins_migration_that_fails_is_named(
    desk: Desk,
    environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    upgrade: str,
    line: int,
    reason: str,
) -> None:
    """It said `internal`, or to run what just had failed."""
    assert desk.call("db", "upgrade").returncode == 0
    path, name = tmp_path / reason, f"broken_{reason.lower()}_{line}"
    monkeypatch.syspath_prepend(install_migrations(path, name, upgrade))
    done = desk.call("db", "upgrade")
    at = path / name / "migrations" / "versions" / f"0001_first.py:{line}"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error[migration_failed]: A migration cannot be read, or fails; nothing was changed")
    assert f"(path={at}, reason={reason})" in done.stderr
    database = sqlite3.connect(environ["CONSUMER_DATABASE_URL"].split("///", 1)[1])
    assert database.execute("SELECT * FROM sqlite_schema WHERE name = 'half'").fetchall() == []
    database.close()
    if line == 9:  # nobody can read it: whoever looks is told the same
        done = desk.call("status")
        assert (done.returncode, str(at) in done.stdout, "[migration_failed]" in done.stdout) == (3, True, True)


# case: H1
def test_what_a_migration_prints_is_no_part_of_the_answer(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood before the JSON document."""
    talks = install_migrations(tmp_path / "talks", "talks", 'print("moved 3 rows")\nprint("hello")')
    monkeypatch.syspath_prepend(talks)
    assert desk.ask("db", "upgrade")["state"] == "current"
    assert desk.ask("db", "current")["state"] == "current"
    assert desk.ask("handlers", "check")["problems"] == []


# case: H8
def test_a_plugin_that_cannot_be_imported_is_a_warning_and_no_part_of_the_answer(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command and role ended with `handler_invalid`, and without the reason; `--json` began with what it said."""
    files = {"__init__.py": "print('hello')\nraise RuntimeError('no sdk')", "handlers.py": "", "migrations/a": ""}
    groups = {"consumer.handlers": "torn_shop.handlers", "consumer.migrations": "torn_shop.migrations"}
    install_package(tmp_path, "torn_shop", files, groups)
    monkeypatch.syspath_prepend(str(tmp_path))
    for word in ("upgrade", "current"):
        assert desk.ask("db", word)["state"] == "current"
        done = desk.call("db", word)
        assert (done.returncode, "hello" in done.stdout) == (0, False)
        told = "warning[plugins_broken]: torn_shop cannot be loaded: RuntimeError: no sdk (at "
        assert told in done.stderr
        assert "torn_shop/__init__.py:2)" in done.stderr
    assert desk.ask("events", "list") is not None
    assert "cannot be loaded: torn_shop" in str(desk.call("status").stdout)


# case: O7
def test_a_backup_that_lies_beside_what_a_killed_role_left_is_refused_and_kept(
    desk: Desk, environ: dict[str, str]
) -> None:
    """SQLite takes the write-ahead file for the backup's own, and folds it in: it was up to date, and damaged."""
    assert desk.call("db", "upgrade").returncode == 0
    path = Path(environ["CONSUMER_DATABASE_URL"].split("///", 1)[1])
    backup = path.with_name("backup.db")
    role = sqlite3.connect(path, isolation_level=None)
    add = (
        "WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 2000)"
        " INSERT INTO budgets SELECT ? || value, printf('%0500d', value) FROM n"
    )
    with closing(sqlite3.connect(backup)) as target:
        role.backup(target)
    role.execute(add, ("a",))
    role.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    role.execute(add, ("b",))
    left = Path(f"{path}-wal").read_bytes()
    role.close()
    shutil.copy(backup, path)
    Path(f"{path}-wal").write_bytes(left)
    done = desk.call("db", "upgrade")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error[ledger_corrupt]: ")
    assert "without the old `-wal`" in done.stderr
    assert path.read_bytes() == backup.read_bytes()
    for beside in ("-wal", "-shm"):
        Path(f"{path}{beside}").unlink(missing_ok=True)
    assert desk.call("db", "upgrade").returncode == 0


def changed(environ: dict[str, str], statement: str) -> None:
    path = Path(environ["CONSUMER_DATABASE_URL"].split("///", 1)[1])
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()
