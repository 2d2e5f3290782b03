"""Tables of plugins: what is wrong with them, or with their migrations, is told before they are deployed."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from sqlalchemy import Column, Integer, String, Table
from sqlmodel import Field, SQLModel

from consumer.testing import assert_migrated
from consumer.work.inspection import inspect_plugins
from consumer.work.registry import Registry, load_registry
from tests.support.merchant.plugin import install_migrations

TABLE = """
from sqlmodel import Field, SQLModel
from consumer.plugin import Context, Event, handles

class {model}(SQLModel, table=True):
    __tablename__ = "clash_point"
    id: int = Field(primary_key=True)

@handles("order.paid", name="{plugin}:keep", transactional=True)
async def keep(event: Event, ctx: Context) -> None: ...
"""


class MigratedCard(SQLModel, table=True):
    """A table whose migration the tests write."""

    __tablename__ = "migrated_card"
    __table__: ClassVar[Table]

    id: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    owner: str = Field(sa_column=Column(String(20), nullable=False))


def test_of_two_plugins_with_a_table_of_one_name_the_second_is_told_so(on_the_path: Path) -> None:
    """And only it: the first one runs, and everybody else."""
    for plugin, model in (("clash_a", "PointA"), ("clash_b", "PointB")):
        (on_the_path / f"{plugin}.py").write_text(TABLE.format(plugin=plugin, model=model))
        metadata = on_the_path / f"{plugin}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {plugin}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[consumer.handlers]\n{plugin} = {plugin}\n")
    try:
        registry = load_registry()
        assert "clash_a:keep" in {handler.name for handler in registry.handlers}
        (problem,) = [one.line() for one in inspect_plugins(registry) if one.plugin == "clash_b"]
        assert "Table 'clash_point' is already defined" in problem
    finally:
        SQLModel.metadata.remove(SQLModel.metadata.tables["clash_point"])


def test_check_names_a_revision_that_postgresql_would_refuse(on_the_path: Path) -> None:
    name = "a_plugin_with_quite_a_long_name"
    install_migrations(on_the_path, name, "pass")
    found = [one.line() for one in inspect_plugins(Registry([])) if one.plugin == "migrations"]
    assert len(found) == 1
    assert found[0].startswith(f"migrations: the id of a revision has at most 32 characters: {name}_0001 (")
    assert found[0].endswith("/migrations/versions/0001_first.py:3)")


@pytest.mark.parametrize(
    ("upgrade", "said"),
    [
        ("pass", "add table: migrated_card"),
        (
            'op.create_table("migrated_card", sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False))',
            "add column: migrated_card owner",
        ),
        (
            (
                'op.create_table("migrated_card", sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),'
                ' sa.Column("owner", sa.String(20), nullable=True))'
            ),
            "modify nullable: migrated_card owner",
        ),
        (
            (
                'op.create_table("migrated_card", sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),'
                ' sa.Column("owner", sa.String(20), nullable=False))'
            ),
            "downgrade leaves migrated_card behind",
        ),
    ],
)
def test_a_migration_that_was_forgotten_is_told(on_the_path: Path, upgrade: str, said: str) -> None:
    install_migrations(on_the_path, "cards", upgrade)
    with pytest.raises(AssertionError) as caught:
        assert_migrated(MigratedCard, migrations="cards.migrations")
    assert said in str(caught.value)
