"""Rebuilding: which tables a plugin has, and what of them was written beside its handlers, for `consumer rebuild`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncSession
from sqlmodel import SQLModel

from consumer.console.checkouts import ACTOR, REGISTERED, Checkout, write_checkout
from consumer.errors import NotFound, UsageError
from consumer.ledger import Database
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
    """The plugins that a word on the command line means, in the order they are installed. Raises NotFound."""
    with_tables = [name for name in dict.fromkeys(one.plugin for one in registry.handlers) if tables_of(name, registry)]
    if plugin == ALL:
        return with_tables
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


def tables_of(plugin: str, registry: Registry) -> list[Table]:
    """The tables that the package of a plugin's handlers declares."""
    modules = {one.function.__module__ for one in registry.handlers if one.plugin == plugin}
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
    plugins: Sequence[str], database: Database, registry: Registry, options: Mapping[str, Mapping[str, Any]]
) -> Rebuild:
    """What rebuilds these plugins. Raises UsageError for a table whose rows are of no application."""
    tables = list(dict.fromkeys(table for plugin in plugins for table in tables_of(plugin, registry)))
    for table in tables:
        if "application" not in table.c:
            raise UsageError("a table without the column `application` cannot be rebuilt", table=table.name)
    handlers = [one for one in registry.handlers if one.plugin in plugins]
    if not any(one.transactional for one in handlers):
        raise UsageError("none of its handlers is transactional: nothing would derive its tables again")
    ours = [one for one in plugins if one in TOGETHER]
    return Rebuild(
        database,
        handlers,
        {one.name: options_for(one.function, options.get(one.plugin, {})) for one in handlers},
        tables,
        honours=HONOURS if ours else {},
        at_once={(REGISTERED, ACTOR): registered} if ours else {},
    )
