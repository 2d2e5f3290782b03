"""Whatever `handlers check` finds, and what keeps a module from being simulated, names the author's file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlmodel import SQLModel

from consumer.cli.developing.unmigrated import unmigrated, without_a_zone
from consumer.work.inspection import inspect_plugins
from consumer.work.migrations import migration_problems
from consumer.work.registry import load_registry
from tests.support.desk import Desk
from tests.support.merchant.plugin import install_package, install_plugin

HEAD = "from __future__ import annotations\nfrom consumer.plugin import Context, Event, OrderEvent, handles\n"
WRONG = {
    "signature": ("@handles('order.paid', name='p:a')\nasync def a(event: str, ctx: Context) -> None: ...", 3),
    "unreadable": ("@handles('order.paid', name='p:a')\nasync def a(event: Evnt, ctx: Context) -> None: ...", 3),
    "payload": ("@handles('access.granted', name='p:a')\nasync def a(event: Event[OrderEvent], ctx) -> None: ...", 3),
    "timeout": (
        "@handles('order.paid', name='p:a', transactional=True, timeout_s=99)\nasync def a(event, ctx) -> None: ...",
        3,
    ),
    "declaration": ("@handles('order.paid', name='p:a')\ndef a(event, ctx) -> None: ...", 3),
    "no handler": ("WORD = 1", 1),
    "long name": (f"@handles('order.paid', name='{'p' * 300}')\nasync def a(event, ctx) -> None: ...", 3),
    "syntax": ("def a(:", 3),
    "import": ("import no_such_module_at_all", 3),
    "raises": ("WORD = {}['color']", 3),
}
REVISION = (
    'revision = "{id}"\ndown_revision = {down}\nbranch_labels = {labels}\ndef upgrade(): {body}\ndef downgrade(): ...\n'
)


def revision(number: int, down: str | None = None, labels: str | None = "marked", padding: str = "") -> str:
    """A migration, as a file."""
    named = f"({labels!r},)" if labels else "None"
    return (
        f"revision = 'marked_{number}{padding}'\ndown_revision = {down!r}\nbranch_labels = {named}\n"
        "def upgrade(): ...\ndef downgrade(): ...\n"
    )


MIGRATIONS = {
    "no label": ([revision(1, labels=None)], "0001.py:3"),
    "long id": ([revision(1, padding="1" * 30)], "0001.py:1"),
    "syntax": (["def upgrade(:\n"], "0001.py:1"),
    "a missing one": ([revision(2, "marked_1", None)], "0001.py:2"),
    "two ends": ([revision(1), revision(2, "marked_1", None), revision(3, "marked_1", None)], "0003.py:2"),
}


# case: H10
def test_of_a_handler(on_the_path: Path) -> None:
    for number, (source, _) in enumerate(WRONG.values()):
        install_plugin(on_the_path, f"placed_{number}", f"{HEAD}{source}\n".replace("p:a", f"p:{number}"))
    found = inspect_plugins(load_registry())
    for number, (name, (_, line)) in enumerate(WRONG.items()):
        (problem,) = [one.text for one in found if one.plugin == f"placed_{number}"]
        assert f"placed_{number}.py:{line}" in problem, (name, problem)


# case: H10
@pytest.mark.filterwarnings("ignore:Revision marked_1 referenced")  # Alembic says it before it fails
@pytest.mark.parametrize("name", MIGRATIONS)
def test_of_a_migration(on_the_path: Path, name: str) -> None:
    versions, place = MIGRATIONS[name]
    files = {f"migrations/versions/{number:04}.py": text for number, text in enumerate(versions, start=1)}
    install_package(on_the_path, "marked", files, {"consumer.migrations": "marked.migrations"})
    ((_, problem),) = migration_problems()
    assert f"versions/{place})" in problem, problem


def test_of_a_model_without_a_migration(on_the_path: Path) -> None:
    source = (
        "from sqlmodel import Field, SQLModel\nfrom consumer.plugin import handles\n"
        "class Row(SQLModel, table=True):\n    __tablename__ = 'placed_row'\n    id: int = Field(primary_key=True)\n"
        "@handles('order.paid', name='placed:keep', transactional=True)\nasync def keep(event, ctx): ...\n"
    )
    install_plugin(on_the_path, "placed", source)
    try:
        (problem,) = unmigrated(load_registry(["placed"]))
    finally:
        SQLModel.metadata.remove(SQLModel.metadata.tables["placed_row"])
    assert "no migration makes its table(s) placed_row" in problem.text
    assert problem.text.endswith("placed.py:3)")


@pytest.mark.parametrize(("name", "body"), [("raising", "raise ValueError('no')"), ("ending", "raise SystemExit(4)")])
def test_of_a_migration_that_fails_and_not_that_another_is_to_be_written(
    on_the_path: Path, name: str, body: str
) -> None:
    keep = (
        "from sqlmodel import Field, SQLModel\nfrom consumer.plugin import handles\n"
        "class Row(SQLModel, table=True):\n    __tablename__ = 'NAME_row'\n    id: int = Field(primary_key=True)\n"
        "@handles('order.paid', name='NAME:keep', transactional=True)\nasync def keep(event, ctx): ...\n"
    )
    versions = REVISION.format(id=f"{name}_0001", down=None, labels=(name,), body=body)
    files = {
        "__init__.py": "",
        "keep.py": keep.replace("NAME", name),
        "migrations/__init__.py": "",
        "migrations/versions/0001.py": versions,
    }
    install_package(on_the_path, name, files, {"consumer.migrations": f"{name}.migrations"})
    with (on_the_path / f"{name}-1.0.dist-info" / "entry_points.txt").open("a") as entries:
        entries.write(f"[consumer.handlers]\n{name} = {name}.keep\n")
    try:
        (problem,) = unmigrated(load_registry([name]))
    finally:
        SQLModel.metadata.remove(SQLModel.metadata.tables[f"{name}_row"])
    assert problem.text.endswith("versions/0001.py:4)"), problem.text
    assert "db revision" not in problem.text


def test_of_a_time_without_a_zone(on_the_path: Path) -> None:
    """The kit's SQLite takes what each run on PostgreSQL fails for."""
    source = (
        "from datetime import datetime\nfrom sqlalchemy import DateTime\nfrom sqlmodel import Field, SQLModel\n"
        "from consumer.plugin import UtcDateTime, handles\n"
        "class Row(SQLModel, table=True):\n    __tablename__ = 'timed_row'\n    id: int = Field(primary_key=True)\n"
        "    at: datetime = Field(sa_type=DateTime)\n    heard_at: datetime = Field(sa_type=UtcDateTime)\n"
        "@handles('order.paid', name='timed:keep', transactional=True)\nasync def keep(event, ctx): ...\n"
    )
    install_plugin(on_the_path, "timed", source)
    try:
        (warning,) = without_a_zone(load_registry(["timed"]))
    finally:
        SQLModel.metadata.remove(SQLModel.metadata.tables["timed_row"])
    assert warning.text.startswith("timed_row.at is a time without a zone")
    assert warning.text.endswith("timed.py:5)")


def test_of_two_plugins_of_one_package_the_one_that_brings_the_migrations_is_asked(on_the_path: Path) -> None:
    """The other one was told to write them once more: two branches would have made one table."""
    keep = (
        "from sqlmodel import Field, SQLModel\nfrom consumer.plugin import handles\n"
        "class Row(SQLModel, table=True):\n    __tablename__ = 'twins_row'\n    id: int = Field(primary_key=True)\n"
        "@handles('order.paid', name='twins:keep', transactional=True)\nasync def keep(event, ctx): ...\n"
    )
    tell = f"{HEAD}@handles('order.paid', name='twins:tell')\nasync def tell(event, ctx): ...\n"
    files = {"__init__.py": "", "keep.py": keep, "tell.py": tell, "migrations/__init__.py": ""}
    install_package(on_the_path, "twins", files, {"consumer.migrations": "twins.migrations"})
    with (on_the_path / "twins-1.0.dist-info" / "entry_points.txt").open("a") as entries:
        entries.write("[consumer.handlers]\ntwins = twins.keep\ntwins_tell = twins.tell\n")
    try:
        found = unmigrated(load_registry(["twins", "twins_tell"]))
    finally:
        SQLModel.metadata.remove(SQLModel.metadata.tables["twins_row"])
    assert [one.plugin for one in found] == ["twins"]


def test_of_a_package_of_several_plugins_one_is_asked_for_its_migrations(on_the_path: Path) -> None:
    """Each was told to write them, by a command that names it: the right one is whose module declares the model."""
    keep = (
        "from sqlmodel import Field, SQLModel\nfrom consumer.plugin import handles\n"
        "class Row(SQLModel, table=True):\n    __tablename__ = 'trio_row'\n    id: int = Field(primary_key=True)\n"
        "@handles('order.paid', name='trio:keep', transactional=True)\nasync def keep(event, ctx): ...\n"
    )
    tell = f"{HEAD}@handles('order.expired', name='trio:tell')\nasync def tell(event, ctx): ...\n"
    files = {"__init__.py": "", "a.py": tell, "b.py": keep, "c.py": tell.replace("trio:tell", "trio:more")}
    install_package(on_the_path, "trio", files, {})
    with (on_the_path / "trio-1.0.dist-info" / "entry_points.txt").open("a") as entries:
        entries.write("[consumer.handlers]\ntrio_a = trio.a\ntrio_b = trio.b\ntrio_c = trio.c\n")
    try:
        (problem,) = unmigrated(load_registry(["trio_a", "trio_b", "trio_c"]))
    finally:
        SQLModel.metadata.remove(SQLModel.metadata.tables["trio_row"])
    assert problem.plugin == "trio_b"
    assert "`consumer db revision trio_b -m TEXT`" in problem.text


# case: H11
@pytest.mark.parametrize("name", ["syntax", "import", "raises", "declaration", "no handler"])
def test_of_a_module_that_cannot_be_simulated(on_the_path: Path, name: str) -> None:
    source, line = WRONG[name]
    install_plugin(on_the_path, "placed", f"{HEAD}{source}\n")
    done = Desk({}).call("handlers", "simulate", "placed", "--runs", "1")
    assert done.returncode != 0
    assert f"placed.py:{line})" in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "error[internal]" not in done.stderr


IMPORTS = """
from __future__ import annotations
import typing
from typing import TYPE_CHECKING
from consumer.plugin import handles
if TYPE_CHECKING:
    from _typeshed import Incomplete
    from consumer.plugin import Context, Event, FulfilmentRequested as Paid
    Known = Event[Paid]
if typing.TYPE_CHECKING:
    import consumer.plugin as face
"""
RIGHT = """
@handles("fulfilment.requested", name="right:a")
async def a(event: Event[Paid], ctx: Context) -> None: ...

@handles("fulfilment.requested", name="right:b")
async def b(event: Known, ctx: face.Context) -> None: ...

@handles("fulfilment.requested", name="right:c")
async def c(event: Incomplete, ctx: Context) -> None: ...
"""


# case: H10
def test_names_imported_for_type_checkers_only_are_understood(on_the_path: Path) -> None:
    install_plugin(on_the_path, "right", IMPORTS + RIGHT)
    wrong = "@handles('access.granted', name='wrong:d')\nasync def d(event: Event[Paid], ctx: Event) -> None: ...\n"
    install_plugin(on_the_path, "swapped", IMPORTS + wrong)
    found = [one for one in inspect_plugins(load_registry()) if one.plugin in ("right", "swapped")]
    assert [one.plugin for one in found] == ["swapped", "swapped"]
    assert "'ctx' is annotated Event, it gets Context" in found[0].text
    assert "carries AccessGranted" in found[1].text
