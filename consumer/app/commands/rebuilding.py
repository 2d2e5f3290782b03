"""Rebuilding: which tables a plugin has, and what of them was written beside its handlers, for `consumer rebuild`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncSession
from sqlmodel import SQLModel

from consumer.console.checkouts import ACTOR, REGISTERED, Checkout, write_checkout
from consumer.errors import NotFound, RebuildDiffers, UsageError
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.ledger.rebuilding import past
from consumer.ledger.tables import HandlerRow
from consumer.plugin import Handler
from consumer.plugin.options import options_for
from consumer.replay.rebuild import Rebuild
from consumer.work.registry import Registry

ALL = "all"
TOGETHER = ("fulfilment", "access")
"""A registered checkout is written into the tables of both at once: they are rebuilt together."""
HONOURS = {"fulfilment.requested": "fulfilment.released"}


async def registered(session: AsyncSession, application: str, data: Mapping[str, Any], at: datetime) -> None:
    """What the query API wrote beside its word `checkout.registered`."""
    names = ("session_id", "order_id", "customer", "expected_amount", "mode", "price_id")
    fields: dict[str, Any] = {name: data.get(name) for name in names}
    await write_checkout(session, Checkout(application=application, **fields), at)


def chosen(plugin: str, registry: Registry) -> list[str]:
    """The plugins that a word on the command line means, in the order they are installed: `all` are those with tables,
    and those with a transactional handler, which may write into another package's. Raises NotFound."""
    with_tables = [name for name in dict.fromkeys(one.plugin for one in registry.handlers) if tables_of(name, registry)]
    if plugin == ALL:
        writers = {one.plugin for one in registry.handlers if one.transactional}
        return [*with_tables, *sorted(writers - set(with_tables))]
    if plugin not in with_tables:
        raise NotFound("no such plugin with tables is installed", plugin=plugin[:100], known=", ".join(with_tables))
    if plugin in TOGETHER:
        return [name for name in with_tables if name in TOGETHER]
    dropped = set(tables_of(plugin, registry))  # one package: any of them may have written there
    return [name for name in with_tables if dropped & set(tables_of(name, registry))]


def not_here(registry: Registry) -> list[str]:
    """What `all` does not reach, one line each: plugins that cannot be loaded, and built-in ones that CONSUMER_HANDLERS
    leaves out."""
    left_out = sorted({one.plugin for one in registry.absent})
    return [
        *(f"{one.plugin} cannot be loaded (`consumer handlers list`)" for one in registry.broken),
        *(f"CONSUMER_HANDLERS leaves out handlers of {one}" for one in left_out),
    ]


def by_both_names(registry: Registry, renamed: Mapping[str, str]) -> Registry:
    """The same registry, where a handler that is `renamed` (old name to new) is there by either: runs of both may be in
    the ledger, as before somebody thought of the mapping the new one was a handler of its own."""
    others = [replace(one, name=renamed[one.name]) for one in registry.handlers if one.name in renamed]
    return Registry([*registry.handlers, *others], registry.broken, registry.absent, left_out=registry.left_out)


async def require_known(
    session: AsyncSession, plugin: str, plugins: Sequence[str], registry: Registry, but: Collection[str] = ()
) -> list[str]:
    """Each transactional handler whose runs succeeded is played now, or has tables of its own, which are not dropped:
    else what it wrote would be gone, and derived by nobody. Not asked of those in `but`, of built-in ones that are left
    out and of plugins that cannot be loaded: with these `all` is not all, and says so. `plugin`: the word that was
    typed; into the tables of built-in plugins nobody else writes. The answer: of which it is not known whether they are
    transactional, as this ledger was filled from archives, where nothing is dropped that they could have written.
    Raises RebuildDiffers, UsageError."""
    here = {one.name: one for one in (*registry.handlers, *registry.left_out, *registry.absent)}
    done = set(await past.done_by(session))
    if unknown := sorted(set(but) - done - here.keys()):
        raise UsageError("--without names a handler of which no run succeeded", handlers=", ".join(unknown)[:500])
    if ours := sorted(name for name in but if name in here and here[name].is_built_in):
        raise UsageError(
            "--without names a handler that is built in: its tables are never in part", handlers=", ".join(ours)
        )
    if plugin in TOGETHER:
        return []
    rows = {row.name: row for row in await handlers.everyone(session)}
    broken = {one.plugin for one in registry.broken} if plugin == ALL else set()
    with_tables = () if plugin == ALL else [one for one in here.values() if _tables([one])]
    settled = {one.name for one in (*registry.absent, *with_tables) if one.plugin not in plugins}
    settled |= {one.name for one in registry.handlers if one.plugin in plugins} | set(but)
    known: dict[str, Handler | HandlerRow] = {**rows, **here}
    left = sorted(done - settled)
    lost = [name for name in left if name in known and known[name].transactional and known[name].plugin not in broken]
    unknown = [] if broken else [name for name in left if name not in known]
    if not set(plugins) <= set(TOGETHER):
        lost, unknown = sorted([*lost, *unknown]), []
    if lost:
        raise RebuildDiffers(
            "what these handlers wrote would be lost, as none of that name would be played: "
            f"{'' if plugin == ALL else 'type `consumer rebuild all`, '}give their new names in "
            "CONSUMER_RENAMED_HANDLERS, install them, let CONSUMER_HANDLERS have them, or say `--without NAME` of each "
            "that wrote into no table, or whose rows may go", handlers=", ".join(lost),
        )  # fmt: skip
    return unknown


def without_tables(registry: Registry) -> list[str]:
    """The transactional handlers that `all` plays although their package has no tables."""
    return [one.name for one in registry.handlers if one.transactional and not tables_of(one.plugin, registry)]


def tables_of(plugin: str, registry: Registry) -> list[Table]:
    """The tables that the package of a plugin's handlers declares."""
    return _tables([one for one in registry.handlers if one.plugin == plugin])


def _tables(of: Iterable[Handler]) -> list[Table]:
    modules = {one.function.__module__ for one in of}
    roots = {name.rpartition(".")[0] or name for name in modules}
    found = [
        mapper.local_table
        for mapper in SQLModel._sa_registry.mappers
        if any(_is_within(mapper.class_.__module__, root) for root in roots)
    ]
    return sorted((table for table in found if isinstance(table, Table)), key=lambda table: table.name)


def _is_within(module: str, root: str) -> bool:
    return module == root or module.startswith(f"{root}.")


def rebuild_of(
    plugins: Sequence[str],
    database: Database,
    registry: Registry,
    options: Mapping[str, Mapping[str, Any]],
    but: Collection[str] = (),
) -> Rebuild:
    """What rebuilds these plugins without the handlers `but`. Raises UsageError for a table whose rows are of no
    application."""
    tables = list(dict.fromkeys(table for plugin in plugins for table in tables_of(plugin, registry)))
    for table in tables:
        if "application" not in table.c:
            raise UsageError("a table without the column `application` cannot be rebuilt", table=table.name)
    played = [one for one in registry.handlers if one.plugin in plugins and one.name not in but]
    if not any(one.transactional for one in played):
        raise UsageError("none of its handlers is transactional: nothing would derive its tables again")
    ours = [one for one in plugins if one in TOGETHER]
    return Rebuild(
        database,
        played,
        {one.name: options_for(one.function, options.get(one.plugin, {})) for one in played},
        tables,
        honours=HONOURS if ours else {},
        at_once={(REGISTERED, ACTOR): registered} if ours else {},
    )
