"""Queues: what the built-in handlers could not settle by themselves and an operator must see, whoever's it is.

An unmatched payment, an unresolved subscriber, an unmapped price, orphan or double money, a stopped revocation
(cases F20, F28, F29, A22, A32, A36, B31): findings of both plugins, without knowing an id beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Table, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from handlers.access.tables import FINDINGS as ACCESS
from handlers.fulfilment.tables import FINDINGS as FULFILMENT

TABLES: Mapping[str, Table] = {"access": ACCESS, "fulfilment": FULFILMENT}
KINDS = frozenset({
    "paid_unmatched", "paid_unconfirmed", "amount_mismatch", "unreadable_order", "paid_unidentified",
    "duplicate_payment", "orphan_payment", "disagreement", "paid_unfulfillable", "paid_old_session",
    "unresolved_subscriber", "unmapped_price", "charged_after_end", "unknown_status", "unknown_end_reason", "brake",
    "unreadable_subscription", "unidentified_subscription",
})  # fmt: skip
"""Every kind that the plugins open."""
LISTED_MAX = 200
_OPEN = text("closed_at IS NULL")


@dataclass(frozen=True, kw_only=True)
class Queue:
    """So many open findings of one kind in one application, the oldest since `oldest_at`."""

    application: str
    plugin: str
    kind: str
    count: int
    oldest_at: datetime


async def queues(session: AsyncSession, application: str | None = None) -> list[Queue]:
    """Every kind that has something open, of one application or of all; empty when nothing waits for an operator."""
    found: list[Queue] = []
    for plugin, table in TABLES.items():
        columns = (table.c.application, table.c.kind, func.count(), func.min(table.c.opened_at))
        wanted = select(*columns).where(_OPEN).group_by(table.c.application, table.c.kind)
        if application is not None:
            wanted = wanted.where(table.c.application == application)
        for name, kind, count, oldest_at in await session.execute(wanted):
            found.append(Queue(application=name, plugin=plugin, kind=kind, count=count, oldest_at=oldest_at))
    return sorted(found, key=lambda one: (one.application, one.plugin, one.kind))


async def findings(
    session: AsyncSession, application: str, kind: str | None = None, subject: str | None = None
) -> list[dict[str, Any]]:
    """What is open in one application, oldest first: at most `LISTED_MAX` of each plugin, of one kind or of all, about
    one subject or about all.

    `plugin` and `kind` are what the word `<plugin>.finding_closed` about `subject` needs to close it by hand.
    """
    found: list[dict[str, Any]] = []
    for plugin, table in TABLES.items():
        wanted = select(table).where(table.c.application == application, _OPEN)
        if kind is not None:
            wanted = wanted.where(table.c.kind == kind)
        if subject is not None:
            wanted = wanted.where(table.c.subject == subject)
        rows = await session.execute(
            wanted.order_by(table.c.opened_at, table.c.kind, table.c.subject).limit(LISTED_MAX)
        )
        names = ("kind", "subject", "opened_at", "detail")
        found += [{"plugin": plugin} | {name: row[name] for name in names} for row in rows.mappings()]
    return sorted(found, key=lambda one: (one["opened_at"], one["kind"], one["subject"]))
