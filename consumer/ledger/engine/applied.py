"""Applied: a quick look at whether a database is as this version needs it: without Alembic, whose import and reading of
every migration take longer than the answer, and 10 MiB. Whatever is not plainly well is left to `schema`, which says
what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Table, func, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import CollationChanged, ConsumerError, LedgerError
from consumer.ledger.base_tables import RevisionRow
from consumer.ledger.engine.branches import branches
from consumer.ledger.engine.database import Database, translated
from consumer.ledger.engine.shape import missing_of, refusal, require_utf8

_REVISIONS: Table = RevisionRow.__table__
COLLATED: Final = (15,)
"""Since this version PostgreSQL remembers by which version of the operating system's library it sorts."""
_COLLATIONS: Final = text(
    "SELECT datcollversion, pg_database_collation_actual_version(oid) FROM pg_database"
    " WHERE datname = current_database()"
)
_ID: Final = re.compile(r"""^revision\s*(?::\s*str\s*)?=\s*["']([^"']+)["']""", re.MULTILINE)


async def require_current(database: Database) -> None:
    """Raise LedgerUnavailable and its kin, and SchemaOutdated or SchemaIncompatible as `schema.require_current`."""
    if not await lacks_nothing(database):
        from consumer.ledger.engine import schema

        await schema.require_current(database)


async def lacks_nothing(database: Database) -> bool:
    """Whether every migration of this version was applied, and the tables give what it needs. Raises LedgerUnavailable
    and its kin; False for whatever needs a closer look."""
    here = branches()
    labels, wanted = here.keys(), _revisions_in(here.values())

    def look(connection: Connection) -> bool:
        applied = set(connection.scalars(select(_REVISIONS.c.id)))
        return bool(wanted) and wanted <= applied and not missing_of(connection, labels)

    try:
        with translated(database.path):
            async with database.engine.execution_options(consumer_writes=False).connect() as connection:
                return await connection.run_sync(look)
    except LedgerError as error:
        if error.retryable:
            raise
        return False


def _revisions_in(folders: Iterable[Path]) -> set[str]:
    """Every revision of this version."""
    return {one for folder in folders for path in folder.glob("*.py") for one in _ID.findall(path.read_text())}


async def look_at_encoding(database: Database) -> None:
    """Raises DatabaseNotUtf8, LedgerUnavailable and its kin."""
    if database.dialect == "postgresql":
        async with database.reading() as session:
            require_utf8(str(await session.scalar(text("SHOW server_encoding"))))


async def look_at_collation(database: Database) -> None:
    """Raises CollationChanged, LedgerUnavailable and its kin."""
    async with database.reading() as session:
        if (found := await _collation_changed(session)) is not None:
            raise found


async def _collation_changed(session: AsyncSession) -> CollationChanged | None:
    dialect = session.get_bind().dialect
    if dialect.name != "postgresql" or (dialect.server_version_info or ()) < COLLATED:
        return None
    made_by, now = (await session.execute(_COLLATIONS)).one()
    return None if made_by is None or made_by == now else CollationChanged(made_by=made_by, now=now)


class SchemaWatch:
    """Whether the tables still give what this version needs, while a role of it runs: another version's migration may
    have come since its start. Each is noted in a table, which is all that is asked until one was. A plugin that was
    installed since then is none of the role's."""

    def __init__(self) -> None:
        self._branches: Mapping[str, Path] | None = None
        self._seen: tuple[int, datetime | None] | None = None
        self._refusal: ConsumerError | None = None
        self._collation: ConsumerError | None = None

    def collation(self) -> ConsumerError | None:
        """Whether the server has come to sort otherwise, as the last look found."""
        return self._collation

    def refusal(self) -> ConsumerError | None:
        """What the last look found; None while the tables suit."""
        return self._refusal

    async def look(self, session: AsyncSession) -> None:
        """Compare, where a migration was run or taken back since the last look. Raises LedgerError."""
        here = self._branches = self._branches or branches()
        self._collation = await _collation_changed(session)
        count, newest = (await session.execute(select(func.count(), func.max(_REVISIONS.c.applied_at)))).one()
        if (count, newest) == self._seen:
            return
        lacking = await (await session.connection()).run_sync(missing_of, here.keys())
        applied, ours = set(await session.scalars(select(_REVISIONS.c.id))), _revisions_in(here.values())
        self._refusal = refusal(ours - applied, lacking, applied - ours, here.keys()) if lacking else None
        self._seen = (count, newest)
