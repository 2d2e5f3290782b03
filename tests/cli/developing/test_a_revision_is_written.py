"""`consumer db revision PLUGIN -m TEXT` writes the migration that the models lack; `handlers check` says when one is
missing; what is written runs on both databases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumer.ledger import Database
from consumer.ledger.engine import schema
from tests.support.desk import Desk
from tests.support.merchant.plugin import install_package
from tests.support.process import command

PLUGIN = "shopnotes"
HANDLER = """
from consumer.plugin import Context, Event, handles
from shopnotes.tables import Note

@handles("fulfilment.requested", name="shopnotes:keep", transactional=True)
async def keep(event: Event, ctx: Context) -> None:
    await ctx.insert_new(Note(order_id=event.order_id or "", at=event.received_at))
"""
TABLES = """
from datetime import datetime
from sqlalchemy import String
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel
from consumer.plugin import UtcDateTime

class Word(TypeDecorator):
    impl = String(30)
    cache_ok = True

class Note(SQLModel, table=True):
    __tablename__ = "shopnotes_note"
    order_id: str = Field(primary_key=True, max_length=128)
    at: datetime = Field(sa_type=UtcDateTime)
"""


class Author:
    """Somebody whose plugin has a model and no migration yet."""

    def __init__(self, folder: Path, database_url: str) -> None:
        files = {"__init__.py": "", "handler.py": HANDLER, "tables.py": TABLES, "migrations/__init__.py": ""}
        groups = {"consumer.handlers": "shopnotes.handler", "consumer.migrations": "shopnotes.migrations"}
        self.environ = install_package(folder, PLUGIN, files, groups)
        self.environ |= {"CONSUMER_DATABASE_URL": database_url, "CONSUMER_BROKER_URL": f"embedded:{folder}/log.db"}
        self.folder = folder / PLUGIN

    def consumer(self, *words: str, exit_code: int = 0) -> Any:
        done = command(*words, "--json", environ=self.environ, within_s=110)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def says(self, *words: str) -> str:
        """What one prints that does not begin, or finds something wrong."""
        done = command(*words, environ=self.environ | {"CONSUMER_INTERNAL_PORT": "0"}, within_s=110)
        assert done.returncode == 1, done.stdout + done.stderr
        return "".join(line for line in (done.stdout + done.stderr).splitlines(True) if not line.startswith("{"))

    def problems(self, exit_code: int) -> list[str]:
        return [one["problem"] for one in self.consumer("handlers", "check", exit_code=exit_code)["problems"]]

    def add_to_model(self, line: str) -> None:
        path = self.folder / "tables.py"
        path.write_text(path.read_text() + f"    {line}\n")


# case: H1
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_from_a_model_to_its_tables(tmp_path: Path, database_url: str) -> None:
    author = Author(tmp_path, database_url)
    assert any("shopnotes_note" in one and "db revision shopnotes" in one for one in author.problems(exit_code=1))

    first = author.consumer("db", "revision", PLUGIN, "-m", "the first table")
    assert first["revision"] == "shopnotes_0001"
    assert first["changes"] == ["add table: shopnotes_note"]
    assert author.problems(exit_code=0) == []

    author.add_to_model("text: str | None = Field(default=None, max_length=200, index=True)")
    author.add_to_model("kind: str = Field(max_length=20)")
    author.add_to_model("word: str | None = Field(default=None, sa_type=Word)  # a type of the author's own")
    [problem] = author.problems(exit_code=1)
    assert "add column: shopnotes_note text" in problem
    second = author.consumer("db", "revision", PLUGIN, "-m", "what it says")
    assert Path(second["path"]).name == "0002_what_it_says.py"
    assert [one for one in second["warnings"] if "NOT NULL" in one and "kind" in one]
    assert author.consumer("db", "revision", PLUGIN, "-m", "again")["revision"] is None

    author.consumer("db", "upgrade")
    assert author.consumer("db", "current")["missing"] == []

    author.add_to_model("forgotten: str | None = Field(default=None, max_length=20)")
    told = author.says("db", "current") + author.says("work")
    assert told.count("`consumer db revision shopnotes -m TEXT` writes it, `db upgrade` runs it") == 2, told
    assert "run the version that made it" not in told, "there is none"
    database = Database(database_url)
    try:
        assert {"shopnotes_0002"} <= await applied_to(database)
    finally:
        await database.stop()


async def applied_to(database: Database) -> frozenset[str]:
    return (await schema.state(database)).current


def test_what_cannot_be_revised_is_said(tmp_path: Path) -> None:
    nobody = Desk({}).call("db", "revision", "shop_nobody", "-m", "x")
    assert (nobody.returncode, "error[not_found]" in nobody.stderr) == (1, True)
    built_in = Desk({}).call("db", "revision", "fulfilment", "-m", "x")
    assert (built_in.returncode, "bring their own migrations" in built_in.stderr) == (2, True)
