"""A plugin whose migrations are not to be had, or are also another's, is not loaded: nobody makes its tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.work.inspection import inspect_plugins
from consumer.work.registry import BrokenPlugin, load_registry
from tests.support.merchant.plugin import install_package

HANDLER = """from consumer.plugin import Context, Event, handles
@handles("order.paid", name="{name}:ship")
async def ship(event: Event, ctx: Context) -> None:
    pass
"""
FIRST = """revision = "{name}_0001"
down_revision = None
branch_labels = ("{name}",)
def upgrade(): pass
def downgrade(): pass
"""
NAMES = ("own_shop", "other_shop")


def install(folder: Path, name: str, migrations: str) -> None:
    """A plugin with one handler and one migration, that names this package of migrations."""
    files = {"__init__.py": "", "handlers.py": HANDLER.format(name=name), "migrations/__init__.py": ""}
    files["migrations/versions/0001_first.py"] = FIRST.format(name=name)
    groups = {"consumer.handlers": f"{name}.handlers", "consumer.migrations": migrations}
    install_package(folder, name, files, groups)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """On the path, and forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for module in [one for one in sys.modules if one.partition(".")[0] in NAMES]:
        del sys.modules[module]


def broken() -> list[BrokenPlugin]:
    """What is broken; whatever is not of these plugins must be there."""
    found = load_registry()
    assert {one.plugin for one in found.handlers} >= {"fulfilment", "access"}
    assert not {one.plugin for one in found.handlers} & {one.plugin for one in found.broken}
    return list(found.broken)


# case: H8
def test_one_with_its_migrations_is_loaded(folder: Path) -> None:
    install(folder, "own_shop", "own_shop.migrations")
    assert broken() == []
    assert [one for one in inspect_plugins(load_registry()) if one.plugin == "own_shop"] == []


# case: H8
def test_one_that_names_a_package_which_is_not_there(folder: Path) -> None:
    """Its handler would run, and each run die: its tables are nowhere."""
    install(folder, "own_shop", "own_shop.migration")
    install(folder, "other_shop", "other_shop.migrations")
    (found,) = broken()
    told = "its migrations are not found, the module named is no package: own_shop 1.0 (own_shop.migration)"
    assert found == BrokenPlugin("own_shop", f"HandlerInvalid: {told}")


# case: H8
def test_two_packages_that_bring_one_branch(folder: Path) -> None:
    """The last one found was run; `db upgrade` said that all is up to date."""
    install(folder, "own_shop", "own_shop.migrations")
    install(folder, "other_shop", "other_shop.migrations")
    entries = folder / "other_shop-1.0.dist-info" / "entry_points.txt"
    entries.write_text(entries.read_text().replace("other_shop = other_shop.m", "own_shop = other_shop.m"))
    found = broken()
    assert [one.plugin for one in found] == ["other_shop", "own_shop"]
    both = "other_shop 1.0 (other_shop.migrations) and own_shop 1.0 (own_shop.migrations); uninstall all but one"
    assert all(one.reason.endswith(both) for one in found)
    told = {one.plugin: one.text for one in inspect_plugins(load_registry())}
    assert set(told) == {"own_shop", "other_shop"}, "and nothing about branch_labels"
    assert both in told["own_shop"]


# case: H8
def test_a_branch_of_no_plugin_is_told_by_its_name(folder: Path) -> None:
    install(folder, "own_shop", "own_shop.migration")
    entries = folder / "own_shop-1.0.dist-info" / "entry_points.txt"
    entries.write_text("[consumer.migrations]\nown_tables = own_shop.migration\n")
    assert [one.plugin for one in broken()] == ["own_tables"]


# case: H8
def test_who_takes_a_built_in_branch_is_broken_and_the_built_in_plugin_is_not(folder: Path) -> None:
    install(folder, "own_shop", "own_shop.migrations")
    entries = folder / "own_shop-1.0.dist-info" / "entry_points.txt"
    entries.write_text(entries.read_text().replace("own_shop = own_shop.m", "access = own_shop.m"))
    found = load_registry()
    assert "access" in {one.plugin for one in found.handlers}
    assert "own_shop" not in {one.plugin for one in found.handlers}
    assert [one.plugin for one in found.broken] == ["own_shop", "access"]
