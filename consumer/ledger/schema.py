"""Schema: brings the database to this version, the ledger's branch and every plugin's (`consumer db upgrade`).

A plugin's branch is found by the entry-point group `consumer.migrations`: the name is its branch label, the value a
package that contains `versions`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import Connection

from consumer.errors import HandlerInvalid, SchemaOutdated
from consumer.ledger.database import Database, translated

GROUP = "consumer.migrations"
LEDGER = "ledger"
_LOCK = 0x7061795F636F6E73  # any fixed number: two upgrades at once wait for each other


@dataclass(frozen=True)
class SchemaState:
    """The revisions the database has, and those this version wants."""

    current: frozenset[str]
    wanted: frozenset[str]

    @property
    def is_current(self) -> bool:
        """Whether nothing is missing; a newer database (expand first, contract later) is fine too (case O9)."""
        return self.wanted <= self.current


def branches() -> Mapping[str, Path]:
    """Branch label to the folder of its migrations. Raises HandlerInvalid for a package that cannot be imported."""
    found = {LEDGER: Path(__file__).parent / "migrations" / "versions"}
    for entry in entry_points(group=GROUP):
        try:
            package = import_module(entry.value)
        except Exception as error:
            raise HandlerInvalid("a plugin's migrations cannot be imported", plugin=entry.name) from error
        found[entry.name] = Path(package.__path__[0]) / "versions"
    return found


def alembic_config() -> Config:
    """Alembic's configuration for all branches, without a file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join(str(path) for path in branches().values()))
    return config


async def upgrade(database: Database) -> SchemaState:
    """Bring all branches to their heads, in one transaction; safe to run from several processes at once."""
    config = alembic_config()

    def run(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, "heads")

    with translated():
        async with database.engine.begin() as connection:
            await connection.run_sync(run)
    return await state(database)


async def state(database: Database) -> SchemaState:
    """What the database has against what this version wants."""
    wanted = frozenset(ScriptDirectory.from_config(alembic_config()).get_heads())

    def heads(connection: Connection) -> frozenset[str]:
        return frozenset(MigrationContext.configure(connection).get_current_heads())

    with translated():
        # It only looks: on SQLite it must not wait for whoever writes.
        async with database.engine.execution_options(consumer_writes=False).connect() as connection:
            return SchemaState(current=await connection.run_sync(heads), wanted=wanted)


async def require_current(database: Database) -> None:
    """Raise SchemaOutdated when the database lacks a migration of this version."""
    found = await state(database)
    if not found.is_current:
        raise SchemaOutdated(missing=",".join(sorted(found.wanted - found.current)))
