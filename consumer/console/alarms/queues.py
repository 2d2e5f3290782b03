"""Queues: what the built-in handlers could not settle by themselves and an operator must see, whoever's it is.

An unmatched payment, an unresolved subscriber, an unmapped price, orphan or double money, a stopped revocation
(cases F20, F28, F29, A22, A32, A36, B31): findings of both plugins, without knowing an id beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Table, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from handlers.access.tables import FINDINGS as ACCESS
from handlers.findings import as_seen
from handlers.fulfilment.tables import FINDINGS as FULFILMENT

TABLES: Mapping[str, Table] = {"access": ACCESS, "fulfilment": FULFILMENT}
MEANS: Final[Mapping[str, str]] = {
    "paid_unmatched": "Paid, but nobody registered such an order, or the service has none: held until it is let go.",
    "paid_unconfirmed": "An event says that it is paid; held until a read shows the order, or it is let go.",
    "amount_mismatch": "What was paid is not what was expected.",
    "unreadable_order": "Handed on, and now the service says that it has no such order. Nothing is taken back.",
    "paid_unidentified": "A payment came that names no order of yours; it is being read.",
    "duplicate_payment": "Paid more than once, handed on once. Refund the others by your own wallet.",
    "orphan_payment": "A payment of no order that is paid. Refund it by your own wallet.",
    "disagreement": "A read denies what an event said, that it is paid or has ended; it is read again.",
    "paid_unfulfillable": "Paid, and there is nothing to deliver. Refund it by your own wallet.",
    "paid_old_session": "Handed on; what was paid is the price of an older session of the order.",
    "unresolved_subscriber": "Somebody pays, and nobody said whose it is: no customer has the access.",
    "unmapped_price": "Somebody pays, and `entitlements` gives nothing for the price.",
    "charged_after_end": "A charge came after the end; nothing is granted again. Refund it by your own wallet.",
    "unknown_status": "A read shows a status that nobody knows. It changes nothing, and is read again.",
    "unknown_end_reason": "It ended for a reason that nobody knows. The end stands.",
    "brake": "More access would end at once than can be normal: revocations wait until they are let go.",
    "unreadable_subscription": "The service says that it has no such subscription. That ends nothing.",
    "unidentified_subscription": "Events name no subscription: set CONSUMER_LOCATE_SUBSCRIPTION, then "
    "`consumer reconcile`.",
}
"""Every kind that the plugins open: what has happened, and what a person does about it."""
KINDS = frozenset(MEANS)
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
    session: AsyncSession,
    application: str,
    kind: str | None = None,
    subject: str | None = None,
    *,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """What is open in one application, oldest first: at most `limit` (`LISTED_MAX` where nobody says) of each plugin,
    of one kind or of all, about one subject or about all.

    `plugin` and `kind` are what the word `<plugin>.finding_closed` about `subject` needs to close it by hand; with
    `seen` it closes only what this shows.
    """
    found: list[dict[str, Any]] = []
    for plugin, table in TABLES.items():
        wanted = select(table).where(table.c.application == application, _OPEN)
        if kind is not None:
            wanted = wanted.where(table.c.kind == kind)
        if subject is not None:
            wanted = wanted.where(table.c.subject == subject)
        rows = await session.execute(
            wanted.order_by(table.c.opened_at, table.c.kind, table.c.subject).limit(limit or LISTED_MAX)
        )
        names = ("kind", "subject", "opened_at", "detail")
        found += [
            {"plugin": plugin} | {name: row[name] for name in names} | {"seen": as_seen(row["kind"], row["detail"])}
            for row in rows.mappings()
        ]
    return sorted(found, key=lambda one: (one["opened_at"], one["kind"], one["subject"]))
