"""assert_migrated: the migrations of a plugin make the tables that its models declare.

The workbench makes missing tables by itself, so that a handler can be tried before there is a migration: this is what
finds the migration that was forgotten.
"""

from __future__ import annotations

from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from sqlalchemy import inspect as sqlalchemy_inspect

from consumer.ledger.engine.revising import branch_config, compared, migrated, tables_of, told


class NotTakenBack(AssertionError):
    """The migrations make what the models say, and cannot be taken back."""


def assert_migrated(*models: type[Any], migrations: str) -> None:
    """Raise AssertionError with each difference between these models and what the migrations make on an empty SQLite.

    `migrations`: the package of the plugin's branch (what its entry point in `consumer.migrations` names); it need not
    be installed. Every other installed branch is run too, as `consumer db upgrade` does. Also raises when they cannot
    be taken back.
    """
    wanted = tables_of(models)
    config = branch_config(migrations)
    with migrated(config) as connection:
        found = [told(one) for one in compare_metadata(compared(connection, wanted), wanted)]
        command.downgrade(config, "base")
        left = sorted(set(sqlalchemy_inspect(connection).get_table_names()) & set(wanted.tables))
    if found:
        raise AssertionError("the migrations do not make what the models say:\n  " + "\n  ".join(found))
    if left:
        raise NotTakenBack(f"downgrade leaves {', '.join(left)} behind")
