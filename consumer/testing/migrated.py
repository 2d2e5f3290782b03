"""assert_migrated: the migrations of a plugin make the tables that its models declare.

The workbench makes missing tables by itself, so that a handler can be tried before there is a migration: this is what
finds the migration that was forgotten.
"""

from __future__ import annotations

import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import MetaData, create_engine
from sqlalchemy import inspect as sqlalchemy_inspect
from sqlalchemy.engine import Connection

from consumer.ledger.engine import schema


def assert_migrated(*models: type[Any], migrations: str) -> None:
    """Raise AssertionError with each difference between these models and what the migrations make on an empty SQLite.

    `migrations`: the package of the plugin's branch (what its entry point in `consumer.migrations` names); it need not
    be installed. Every other installed branch is run too, as `consumer db upgrade` does. Also raises when they cannot
    be taken back.
    """
    wanted = MetaData()
    for model in models:
        sqlalchemy_inspect(model).local_table.to_metadata(wanted)
    config = _config(migrations)
    with tempfile.TemporaryDirectory(prefix="migrated-") as folder:
        engine = create_engine(f"sqlite:///{folder}/empty.db")
        try:
            with engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "heads")
                found = _differences(connection, wanted)
                command.downgrade(config, "base")
                left = sorted(set(sqlalchemy_inspect(connection).get_table_names()) & set(wanted.tables))
        finally:
            engine.dispose()
    if found:
        raise AssertionError("the migrations do not make what the models say:\n  " + "\n  ".join(found))
    if left:
        raise AssertionError(f"downgrade leaves {', '.join(left)} behind")


def _config(migrations: str) -> Config:
    """Alembic's configuration, with the plugin's branch in it, installed or not."""
    config = schema.alembic_config()
    folder = Path(import_module(migrations).__path__[0]).resolve() / "versions"
    known = {path.resolve() for path in schema.branches().values()}
    config.set_main_option("version_locations", os.pathsep.join(str(path) for path in sorted(known | {folder})))
    return config


def _differences(connection: Connection, wanted: MetaData) -> list[str]:
    options = {
        "compare_type": True,
        "include_name": lambda name, kind, _: kind != "table" or name in wanted.tables,
        "user_module_prefix": "consumer.columns.",
    }
    context = MigrationContext.configure(connection, opts=options)
    return [_told(one) for one in compare_metadata(context, wanted)]


def _told(difference: Any) -> str:
    """One difference in words: what the migration lacks, or has too much."""
    if isinstance(difference, list):
        return "; ".join(_told(one) for one in difference)
    what, *subject = difference
    names = [_named(one) for one in subject if one is not None and not isinstance(one, dict)]
    return f"{what.replace('_', ' ')}: {' '.join(names)}"


def _named(one: Any) -> str:
    name = getattr(one, "name", None)
    return str(one) if name is None else str(name)
