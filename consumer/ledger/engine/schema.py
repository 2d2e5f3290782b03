"""Schema: brings the database to this version, the ledger's branch and every plugin's (`consumer db upgrade`).

A plugin's branch is found by the entry-point group `consumer.migrations`: the name is its branch label, the value a
package that contains `versions`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from consumer.causes import DEADLOCK, of_database
from consumer.errors import (
    ConsumerError,
    DatabaseShared,
    LedgerError,
    LedgerUnavailable,
    MigrationFailed,
    SchemaOutdated,
)
from consumer.ledger.engine import revisions
from consumer.ledger.engine.branches import GROUP as GROUP
from consumer.ledger.engine.branches import LEDGER as LEDGER
from consumer.ledger.engine.branches import branches as branches
from consumer.ledger.engine.database import Database, is_unavailable, translated
from consumer.ledger.engine.grants import require_grants
from consumer.ledger.engine.shape import missing_of, refusal, require_utf8

_LOCK = 0x7061795F636F6E73  # any fixed number: two upgrades at once wait for each other
TRIES: Final = 10
WAIT_S: Final = 1800
"""So long an upgrade waits for another: an index of a hundred million rows is made in minutes."""
GONE_WITHIN_MS: Final = 5000
"""So soon the server ends the statement of an upgrade that was killed; else an index is made to its end first, with the
tables held. Asked of those that know how (14 and newer, on Linux)."""
_NOTICE_A_DEATH = text(
    "SELECT set_config(name, :ms, true) FROM pg_settings WHERE name = 'client_connection_check_interval'"
)
_TAKE_YOUR_TIME = text("SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'")
"""Since 17 the server may end a transaction for its age. An index of a large table takes what it takes."""
_TELL = text("SELECT set_config('lock_timeout', :limit, true)")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SchemaState:
    """The newest revision the database has of each branch, those this version wants, and all that were applied.
    `lacking`: what this version needs and the tables do not give. `unknown`: the newest ones of this version's branches
    that it does not know; a plugin that is gone has left its own behind, and they are not among them. `labels`: this
    version's branches."""

    current: frozenset[str]
    wanted: frozenset[str]
    applied: frozenset[str]
    lacking: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()

    @property
    def missing(self) -> frozenset[str]:
        """The wanted revisions that were not applied."""
        return self.wanted - self.applied

    @property
    def refusal(self) -> LedgerError | None:
        """What keeps this version from the database, with the cure."""
        return refusal(self.missing, self.lacking, self.unknown, self.labels)

    @property
    def is_current(self) -> bool:
        """Whether nothing is missing; a newer database (expand first, contract later) is fine too (case O9), as long
        as its tables give what this version needs."""
        return not self.missing and not self.lacking

    @property
    def word(self) -> str:
        """`outdated`, `incompatible`, `newer_compatible` or `current`."""
        if self.missing:
            return "outdated"
        if self.lacking:
            return "incompatible"
        return "newer_compatible" if self.unknown else "current"


def alembic_config() -> Config:
    """Alembic's configuration for all branches, without a file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join(str(path) for path in branches().values()))
    return config


def _scripts(config: Config) -> ScriptDirectory:
    """Every migration of every branch, read. What one prints goes to stderr: stdout may be one JSON document. Raises
    MigrationFailed."""
    script = ScriptDirectory.from_config(config)
    with blamed(), redirect_stdout(sys.stderr):
        script.get_heads()
    return script


@contextmanager
def blamed() -> Iterator[None]:
    """What a migration raises, `sys.exit()` included, is told with its file and line; what the database has against
    anybody stays as it is."""
    try:
        yield
    except (Exception, SystemExit) as error:
        is_unavailable_now = isinstance(error, DBAPIError) and is_unavailable(error)
        if isinstance(error, ConsumerError) or is_unavailable_now or of_database(error) is not None:
            raise
        raise MigrationFailed(path=_where(error), reason=type(error).__name__) from error


def _where(error: BaseException) -> str | None:
    """The line of a migration that an error came through; None where it is of none."""
    folders = set(branches().values())
    places = [(error.filename, error.lineno)] if isinstance(error, SyntaxError) else []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return next((f"{file}:{line}" for file, line in places if file and Path(file).parent in folders), None)


async def upgrade(database: Database) -> SchemaState:
    """Bring all branches to their heads, in one transaction; safe to run from several processes at once.

    Branches of which the database has more than this version knows, and those of plugins that are not installed (any
    more), stay as they are. A file is looked at whole before: it may have been restored beside what another one left.
    Raises MigrationFailed, LedgerCorrupt, LedgerUnavailable.
    """
    await database.require_whole()
    config = alembic_config()
    script = _scripts(config)

    def run(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(_TAKE_YOUR_TIME)
            with suppress(DBAPIError), connection.begin_nested():
                connection.execute(_NOTICE_A_DEATH, {"ms": str(GONE_WITHIN_MS)})
            _wait_for_others(connection)
        _require_our_own(connection)
        config.attributes["connection"] = connection
        begin_at = revisions.starts(revisions.applied_to(connection, script), script)

        def steps(_: object, __: object) -> object:
            # What `alembic upgrade heads` does, but from what is known here: it stops at a revision it does not know.
            return script._upgrade_revs("heads", begin_at)  # type: ignore[arg-type]  # it takes several, as Alembic's own do

        with blamed(), EnvironmentContext(config, script, fn=steps, destination_rev="heads"):
            script.run_env()
        revisions.note_all(connection, script)

    for tries_left in reversed(range(TRIES)):
        try:
            with translated(database.path):
                async with database.migrating() as engine, engine.begin() as connection:
                    await connection.run_sync(run)
            break
        except LedgerUnavailable as error:
            if not (tries_left and _is_deadlock(error)):
                raise
    return await state(database)


def _wait_for_others(connection: Connection) -> None:
    """Until no other upgrade is at work: many replicas that each begin with one wait, and find it done. Its limit is
    not that of a lock on a table, for which all roles wait, too."""
    if connection.scalar(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": _LOCK}):
        return
    _log.warning("another_upgrade_is_at_work", waits_at_most_s=WAIT_S)
    usual = connection.scalar(text("SHOW lock_timeout"))
    connection.execute(_TELL, {"limit": f"{WAIT_S}s"})
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    connection.execute(_TELL, {"limit": usual})


def _is_deadlock(error: LedgerUnavailable) -> bool:
    """Whether a role had the tables in another order, and the server broke the migration off for it: all of it was
    undone, and may be done again."""
    return getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) == DEADLOCK


def _require_our_own(connection: Connection) -> None:
    """Before the first table is made. Raises DatabaseNotUtf8, DatabaseShared."""
    found = revisions.heads_of(connection)
    if any(one.rpartition("_")[0] == LEDGER for one in found):
        return
    if found:
        raise DatabaseShared
    if connection.dialect.name == "postgresql":
        require_utf8(str(connection.scalar(text("SHOW server_encoding"))))


async def state(database: Database) -> SchemaState:
    """What the database has against what this version wants. Raises DatabaseForbidden where that may not be seen,
    MigrationFailed."""
    script = _scripts(alembic_config())
    wanted, labels = frozenset(script.get_heads()), frozenset(branches())

    def look(connection: Connection) -> SchemaState:
        current = revisions.heads_of(connection)
        applied = revisions.applied_to(connection, script)
        ours = frozenset(one for one in current if one.rpartition("_")[0] in labels)
        unknown = revisions.unknown(ours, script)
        found = SchemaState(current=current, wanted=wanted, applied=applied, unknown=unknown, labels=labels)
        return found if found.missing else replace(found, lacking=missing_of(connection, labels))

    with translated(database.path):
        # It only looks: on SQLite it must not wait for whoever writes.
        async with database.engine.execution_options(consumer_writes=False).connect() as connection:
            found = await connection.run_sync(look)
    if found.missing:
        await require_grants(database, ())  # what may not be seen is taken for what is not there
    return found


async def require_usable(database: Database, own: Collection[str]) -> list[str]:
    """As `require_current` for these branches; what is missing of others, which merchants' plugins bring, is returned:
    it keeps nobody from looking. Raises SchemaOutdated, SchemaIncompatible."""
    found = await state(database)
    if not found.missing:
        await require_current(database)
        return []
    script = _scripts(alembic_config())
    theirs = {one for one in found.missing if not _labels(script, one) & {LEDGER, *own}}
    if found.missing - theirs:
        raise SchemaOutdated(missing=",".join(sorted(found.missing)))
    return sorted(theirs)


def _labels(script: ScriptDirectory, revision: str) -> set[str]:
    found = script.get_revision(revision)
    return set() if found is None else set(found.branch_labels)


async def require_current(database: Database) -> None:
    """Raise SchemaOutdated when the database lacks a migration of this version, SchemaIncompatible when it has them
    all, and its tables are others all the same: a newer version changed what this one needs, or a plugin's models are
    ahead of its migrations."""
    require(await state(database))


def require(found: SchemaState) -> None:
    """The same of a state that was looked at."""
    if (error := found.refusal) is not None:
        raise error
