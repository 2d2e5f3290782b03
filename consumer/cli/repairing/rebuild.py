"""`consumer rebuild`: a plugin's tables, dropped and derived again from what the ledger keeps (case G9)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated

import typer
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.app.commands.rebuilding import (
    ALL,
    TOGETHER,
    by_both_names,
    chosen,
    not_here,
    rebuild_of,
    require_known,
    tables_of,
    without_tables,
)
from consumer.app.options import require_options
from consumer.cli.bootstrap import ledger, run, settings_for
from consumer.cli.consent import ReasonToAct, Yes, actor, checked_reason, consent
from consumer.cli.output import Json, Output
from consumer.cli.plugins import registry_of
from consumer.cli.walking.alone import alone, leader_of
from consumer.clock import SET_BACK, SystemClock
from consumer.errors import NotDerived, RebuildDiffers, UsageError, WorkGoesOn
from consumer.ledger import Database, audit, processes
from consumer.ledger.archiving import derivation
from consumer.ledger.engine.counting import each_of
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.leases import REBUILD
from consumer.ledger.processes import DIED
from consumer.ledger.tables import REASON_CHARS, EventRow
from consumer.replay.rebuild import Rebuilt
from consumer.settings import Role, Settings
from consumer.work.registry import Registry

ALIVE = timedelta(seconds=30)
WORKS = ("work", "dev", "demo")
NOT_HERE = (
    "not here: {names}; if one of them had tables of its own, install it, and `consumer rebuild` its plugin, before "
    "`work` starts: its runs are kept"
)


def rebuild(
    plugin: Annotated[str, typer.Argument(metavar="PLUGIN|all", help="A plugin's name, or `all`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Derive them, compare, and undo it.")] = False,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="With --yes: a table of a plugin of your own that is meant; once for each."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", help="A handler whose rows may be lost, or that wrote none; once for each."),
    ] = None,
    give_up: Annotated[
        bool,
        typer.Option("--give-up", help="With `all`: derive nothing, and let `work` begin with the tables as they are."),
    ] = False,
    reason: ReasonToAct = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Drop a plugin's tables and derive them again from the runs that the ledger has, with `work` stopped. So is it for
    `--dry-run`: no `work` starts meanwhile, and no other rebuild, import or prune. Refused when anybody would be told
    something else than was told. On PostgreSQL a long past takes a temporary table: the user needs TEMPORARY on the
    database, which everybody has unless it was taken away."""
    settings = settings_for(Role.OPERATE)
    if give_up:
        if plugin != ALL or dry_run or without:
            raise UsageError("--give-up goes with `all` alone")
        reason = checked_reason(reason)
        consent("let `work` begin with tables that lack orders, gifts and holds which came in from archives?", yes=yes)
        names = run(_given_up(settings, reason, Output(as_json).line))
        Output(as_json).document({"given_up": names})
        Output(as_json).line(
            f"`work` waits for no rebuild any more; owed it is all the same: {', '.join(names) or '-'}"
        )
        return
    registry = by_both_names(registry_of(settings), settings.renamed_handlers)
    require_options(registry, settings.handler_options)
    plugins = chosen(plugin, registry)
    if not dry_run:
        reason = checked_reason(reason)
        _consent(plugins, registry, frozenset(table or ()), yes=yes)
    lacking = not_here(registry) if plugin == ALL else []
    is_whole = plugin == ALL and not lacking
    output = Output(as_json)
    rebuilt = _rebuild(
        settings, registry, plugin, plugins, reason, without=without or (), is_whole=is_whole, dry_run=dry_run,
        say=output.line,
    )  # fmt: skip
    found = run(rebuilt)
    output.document({"dry_run": dry_run, "tables": [asdict(one) for one in found], "lacking": lacking})
    output.table(
        ["application", "table", "rows before", "rows after", "same", "differs in"],
        [
            [one.application, one.table, one.rows_before, one.rows_after, one.is_same, ", ".join(one.differs) or None]
            for one in found
        ],
        empty="nothing was recorded yet",
    )
    if lacking:
        output.line(f"not all: {', '.join(lacking)}; mended, `consumer rebuild all` again")
    if dry_run:
        output.line(f"a dry run: all of it was undone; `consumer rebuild {plugin} --reason …` keeps it")


def _consent(plugins: Sequence[str], registry: Registry, named: frozenset[str], *, yes: bool) -> None:
    """On a terminal the question lists the tables. With `--yes` nobody reads it: those of a merchant's plugin, which
    may lie in one package with tables that no handler derives, must have been named. Raises UsageError."""
    tables = {one: [found.name for found in tables_of(one, registry)] for one in plugins}
    unnamed = sorted({name for one in plugins if one not in TOGETHER for name in tables[one]} - named)
    if yes and unnamed:
        raise UsageError("with --yes, name every table that is dropped: --table NAME", tables=", ".join(unnamed))
    every = ", ".join(name for one in plugins for name in tables[one])
    consent(f"drop the rows of {every} and derive them again?", yes=yes)


async def _rebuild(
    settings: Settings,
    registry: Registry,
    plugin: str,
    plugins: Sequence[str],
    reason: str,
    *,
    without: Sequence[str],
    is_whole: bool,
    dry_run: bool,
    say: Callable[[str], None],
) -> Sequence[Rebuilt]:
    """With the lease of who derives, which `work` asks for as it begins. Raises AnotherLeads, WorkGoesOn, NotDerived,
    RebuildDiffers."""
    found: list[Rebuilt] = []

    async def noted(session: AsyncSession, application: str) -> None:
        audit.note(
            session, at=await shared_time(session), application=application, actor=actor(), action="plugin.rebuilt",
            subject=f"plugin:{','.join(plugins)}"[:100], reason=reason[:REASON_CHARS],
        )  # fmt: skip

    async def derived() -> None:
        await require_rest(database)
        async with database.reading() as session:
            if not dry_run:
                await derivation.require_all_in(session)
            if unknown := await require_known(session, plugin, plugins, registry, without):
                say(NOT_HERE.format(names=", ".join(unknown)))
            owed = await derivation.marks(session)
            names = await each_of(session, EventRow.__table__.c.application)
        if plugins:
            made = rebuild_of(plugins, database, registry, settings.handler_options, without)
            for name in names:
                with _who_may_be_left_out(registry):
                    found.extend(await made.run(name, dry_run=dry_run, noted=noted))
        if is_whole and not dry_run:
            async with database.transaction() as session:
                await derivation.settle(session, owed)

    async with ledger(settings, whole=True) as database:
        await alone(database, leader_of(database, SystemClock(), REBUILD), say, derived)
    return found


@contextmanager
def _who_may_be_left_out(registry: Registry) -> Iterator[None]:
    """A handler whose package has no tables is played as it may write into another's. Mostly it does not."""
    try:
        yield
    except RebuildDiffers as error:
        named = [one for one in without_tables(registry) if one in error.message]
        if not named:
            raise
        cure = "; its package has no tables: if it writes into no other's, leave it out by `--without"
        raise RebuildDiffers(f"{error.message}{cure} {named[0]}`") from error


async def _given_up(settings: Settings, reason: str, say: Callable[[str], None]) -> Sequence[str]:
    async def given_up() -> Sequence[str]:
        async with database.transaction() as session:
            names = await derivation.give_up(session)
            for name in names:
                audit.note(
                    session, at=await shared_time(session), application=name, actor=actor(), action="rebuild.given_up",
                    subject="plugin:all", reason=reason[:REASON_CHARS],
                )  # fmt: skip
        return names

    async with ledger(settings, whole=True) as database:
        return await alone(database, leader_of(database, SystemClock(), REBUILD), say, given_up)


async def require_rest(database: Database, roles: Collection[str] = WORKS, *, since: datetime | None = None) -> None:
    """Raises WorkGoesOn while a process of these roles lives, or where one did `since` then. One that died may still be
    at what it had begun; not one that was refused because a rebuild is owed, and that a supervisor starts over and
    over."""
    async with database.reading() as session:
        now = await shared_time(session)
        alive = {
            one.process
            for one in await processes.listed(session)
            if one.role in roles
            and one.seen_at <= now + SET_BACK  # else a clock was ahead when it was seen
            and (one.seen_at >= since if since else one.stopped_at is None and now - one.seen_at < ALIVE)
            and not one.said.get(DIED, "").startswith(NotDerived.code)
        }
    if alive:
        raise WorkGoesOn(processes=", ".join(sorted(alive)))
