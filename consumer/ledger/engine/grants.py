"""Grants: what a user of PostgreSQL may not do with the tables that are needed. One grant that is taken back stops what
writes there, and a probe of another table sees nothing of it. SQLite has none."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock
from consumer.errors import DatabaseForbidden, LedgerError, again
from consumer.ledger.base_tables import RevisionRow
from consumer.ledger.engine.database import Database
from consumer.ledger.engine.shape import needed
from consumer.ledger.tables import AuditRow, ChainHeadRow

TOLD_MAX: Final = 5
ASKED_EVERY_S: Final = 10.0
ASKED_WITHIN_S: Final = 1.0
ALL: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
LESS: Final[Mapping[str, Collection[str]]] = {
    RevisionRow.__table__.name: ("SELECT",),  # migrations write it
    AuditRow.__table__.name: ("SELECT", "INSERT", "UPDATE"),  # nothing of the trail is ever deleted
    ChainHeadRow.__table__.name: ("SELECT", "INSERT", "UPDATE"),
}
"""What is enough where not ALL are needed."""
# A schema that may not be used is passed over on the search path: its tables are not `visible`, as if they were not
# there. One that is not on it is somebody else's.
_TABLES: Final = text("""
    SELECT c.relname AS name, n.nspname AS schema, pg_table_is_visible(c.oid) AS visible,
           NOT has_schema_privilege(n.oid, 'USAGE') AND n.nspname IN (
               SELECT CASE p WHEN '$user' THEN current_user ELSE p END
               FROM (SELECT trim(BOTH ' "' FROM unnest(string_to_array(current_setting('search_path'), ',')))) AS s(p)
           ) AS closed,
           ARRAY(SELECT p FROM unnest(CAST(:all AS text[])) AS p WHERE NOT has_table_privilege(c.oid, p)) AS lacking
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relname = ANY(CAST(:names AS name[]))""")
_SEQUENCES: Final = text("""
    SELECT s.relname FROM pg_class AS s
    JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = s.oid AND d.deptype = 'a'
    JOIN pg_class AS t ON t.oid = d.refobjid
    WHERE t.relname = ANY(CAST(:names AS name[])) AND pg_table_is_visible(t.oid)
      AND NOT CASE WHEN s.relkind = 'S' THEN has_sequence_privilege(s.oid, 'USAGE') ELSE true END""")


class Grants:
    """A check for readiness, asked every ASKED_EVERY_S seconds, and each time while something is lacking; `labels` as
    for `require_grants`."""

    def __init__(self, database: Database, labels: Collection[str], clock: Clock) -> None:
        self._database = database
        self._labels = labels
        self._clock = clock
        self._asked_at = float("-inf")
        self._lacking: DatabaseForbidden | None = None

    async def check(self) -> bool:
        """Raises DatabaseForbidden. A database that does not answer is told by its own check."""
        if self._lacking is not None or self._clock.monotonic() - self._asked_at >= ASKED_EVERY_S:
            await self._ask()
        if self._lacking is not None:
            raise again(self._lacking)
        return True

    async def _ask(self) -> None:
        with suppress(LedgerError, TimeoutError):
            try:
                async with asyncio.timeout(ASKED_WITHIN_S):
                    await require_grants(self._database, self._labels)
            except DatabaseForbidden as error:
                self._lacking = error
            else:
                self._lacking, self._asked_at = None, self._clock.monotonic()


async def require_grants(database: Database, labels: Collection[str]) -> None:
    """Raise DatabaseForbidden, which names what this process's user lacks: of the ledger's tables, and of those of the
    branches `labels` that are loaded. LedgerError when nobody answers."""
    if database.dialect != "postgresql":
        return
    async with database.reading() as session:
        found = await _lacking(session, sorted(table.name for table in needed(labels)))
    if found:
        raise DatabaseForbidden(f"The database's user may not do this: {'; '.join(found[:TOLD_MAX])}")


async def _lacking(session: AsyncSession, names: list[str]) -> list[str]:
    tables = (await session.execute(_TABLES, {"all": list(ALL), "names": names})).mappings().all()
    sequences = (await session.execute(_SEQUENCES, {"names": names})).scalars()
    return [*_of_tables(tables), *(f"USAGE on sequence {name}" for name in sequences)]


def _of_tables(rows: Iterable[Mapping[Any, Any]]) -> list[str]:
    """`INSERT, UPDATE on runs`, or `USAGE on schema public`. Pure."""
    rows = list(rows)
    seen = {row["name"] for row in rows if row["visible"]}
    schemas = {row["schema"] for row in rows if row["name"] not in seen and row["closed"]}
    found = [f"USAGE on schema {name}" for name in sorted(schemas)]
    for row in sorted((row for row in rows if row["visible"]), key=lambda row: str(row["name"])):
        lacking = [one for one in LESS.get(row["name"], ALL) if one in row["lacking"]]
        found += [f"{', '.join(lacking)} on {row['name']}"] if lacking else []
    return found
