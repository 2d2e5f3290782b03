"""Revisions: which migrations a database has, told by more than the newest one of each branch (case O9).

While a deploy is rolling, the database is ahead of the code that is about to leave. Its newest revision is unknown
there; that what the old code needs was applied as well is known from table `revisions`. A plugin that was removed
leaves its branch behind, and harms nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Table, delete, inspect, select
from sqlalchemy.engine import Connection

from consumer.columns import insert_into
from consumer.ledger.base_tables import RevisionRow

_REVISIONS: Table = RevisionRow.__table__


def heads_of(connection: Connection) -> frozenset[str]:
    """The newest revision of each branch, as Alembic keeps it."""
    return frozenset(MigrationContext.configure(connection).get_current_heads())


def applied_to(connection: Connection, script: ScriptDirectory) -> frozenset[str]:
    """Every revision that was applied, as far as can be told: those noted, and those below the newest known ones."""
    known, heads = _known(script), heads_of(connection)
    below = {one.revision for head in heads & known.keys() for one in script.iterate_revisions(head, "base")}
    return heads | below | _noted(connection)


def unknown(given: frozenset[str], script: ScriptDirectory) -> frozenset[str]:
    """Of these revisions, those that this code does not have. Pure."""
    return given - _known(script).keys()


def starts(applied: frozenset[str], script: ScriptDirectory) -> tuple[str, ...]:
    """From where this code's branches have to be upgraded: the newest revisions known here that were applied."""
    known = _known(script)
    here = applied & known.keys()
    return tuple(sorted(here - {down for one in here for down in _downs(known[one])}))


def note_all(connection: Connection, script: ScriptDirectory) -> None:
    """All of this code's revisions are applied: also those that were before there was a table to note them in."""
    _note(connection, _known(script))


def remember(
    ctx: MigrationContext,
    step: MigrationInfo,
    heads: Collection[Any],  # noqa: ARG001 - the hook has them
    run_args: Mapping[str, Any],  # noqa: ARG001 - Alembic calls it so
) -> None:
    """Alembic's hook after each migration: note it, or that it was taken back."""
    connection = ctx.connection
    if connection is None or not inspect(connection).has_table(_REVISIONS.name):
        return
    if step.is_upgrade:
        _note(connection, step.up_revision_ids)
    else:
        connection.execute(delete(_REVISIONS).where(_REVISIONS.c.id.in_(step.up_revision_ids)))


def _noted(connection: Connection) -> frozenset[str]:
    if not inspect(connection).has_table(_REVISIONS.name):
        return frozenset()
    return frozenset(connection.scalars(select(_REVISIONS.c.id)))


def _note(connection: Connection, revisions: Iterable[str]) -> None:
    now = datetime.now(UTC)
    rows = [{"id": one, "applied_at": now} for one in sorted(revisions)]
    if rows:
        connection.execute(insert_into(_REVISIONS, connection.dialect.name).on_conflict_do_nothing(), rows)


def _known(script: ScriptDirectory) -> dict[str, Script]:
    return {one.revision: one for one in script.walk_revisions()}


def _downs(one: Script) -> tuple[str, ...]:
    found = (one.down_revision, one.dependencies)
    return tuple(down for given in found for down in ((given,) if isinstance(given, str) else given or ()))
