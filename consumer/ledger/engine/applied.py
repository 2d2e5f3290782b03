"""Applied: a quick look at whether a database is as this version needs it: without Alembic, whose import and reading of
every migration take longer than the answer, and 10 MiB. Whatever is not plainly well is left to `schema`, which says
what is wrong."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy import Table, select
from sqlalchemy.engine import Connection

from consumer.errors import LedgerError
from consumer.ledger.engine.branches import branches
from consumer.ledger.engine.database import Database, translated
from consumer.ledger.engine.shape import missing_of
from consumer.ledger.tables import RevisionRow

_REVISIONS: Table = RevisionRow.__table__
_ID: Final = re.compile(r"""^revision\s*(?::\s*str\s*)?=\s*["']([^"']+)["']""", re.MULTILINE)


async def require_current(database: Database) -> None:
    """Raise LedgerUnavailable and its kin, and SchemaOutdated or SchemaIncompatible as `schema.require_current`."""
    if not await lacks_nothing(database):
        from consumer.ledger.engine import schema

        await schema.require_current(database)


async def lacks_nothing(database: Database) -> bool:
    """Whether every migration of this version was applied, and the tables give what it needs. Raises LedgerUnavailable
    and its kin; False for whatever needs a closer look."""
    folders = branches()
    wanted = {
        one for folder in folders.values() for path in folder.glob("*.py") for one in _ID.findall(path.read_text())
    }

    def look(connection: Connection) -> bool:
        applied = set(connection.scalars(select(_REVISIONS.c.id)))
        return bool(wanted) and wanted <= applied and not missing_of(connection, folders.keys())

    try:
        with translated(database.path):
            async with database.engine.execution_options(consumer_writes=False).connect() as connection:
                return await connection.run_sync(look)
    except LedgerError as error:
        if error.retryable:
            raise
        return False
