"""A plugin with tables was installed and `db upgrade` not run yet: what only looks goes on, and says what to run. In
another folder than the consumer's an error names that folder, and advises no second ledger."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.desk import Desk
from tests.support.merchant.plugin import install_migrations

TABLE = 'op.create_table("shoptables_note", sa.Column("id", sa.Integer, primary_key=True))'
LOOKING = (
    ["events", "list"],
    ["dead", "list"],
    ["handlers", "list"],
    ["explain", "order", "A-1"],
    ["findings", "list"],
)


@pytest.fixture
def with_plugin(desk: Desk, upgraded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.syspath_prepend(install_migrations(tmp_path / "path", "shoptables", TABLE))
    yield desk
    for module in [one for one in sys.modules if one.partition(".")[0] == "shoptables"]:
        del sys.modules[module]


# case: H1, O9
@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_it_looks_and_says_what_to_run(arguments: list[str], with_plugin: Desk) -> None:
    done = with_plugin.call(*arguments)
    assert done.returncode in (0, 1), done.stderr
    assert "shoptables_0001 was not run yet: run `consumer db upgrade`" in done.stderr
    assert "error[schema" not in done.stderr


def test_after_the_upgrade_nothing_is_said(with_plugin: Desk) -> None:
    assert with_plugin.call("db", "current").returncode == 1
    assert with_plugin.call("db", "upgrade").returncode == 0
    assert with_plugin.call("events", "list").stderr == ""


def test_what_writes_a_plugins_tables_waits_for_them(with_plugin: Desk) -> None:
    done = with_plugin.call("rebuild", "all", "--dry-run")
    assert "error[schema_outdated]" in done.stderr


def test_in_another_folder_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    desk = Desk({})
    done = desk.call("events", "list")
    assert done.returncode == 2
    assert (
        f"There is no database data/consumer.db in {tmp_path}: run this in the folder of `consumer dev`" in done.stderr
    )
    assert "db upgrade" not in done.stderr
    assert f"in {tmp_path}" in desk.call("status").stdout
    assert list(tmp_path.iterdir()) == []
