"""Books: pages of what fulfilment knows, for whoever accounts for all of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among
from handlers.fulfilment.tables import CHECKOUTS, FINDINGS, ORDERS, PAYMENTS

Row = Mapping[str, Any]


async def orders_after(session: AsyncSession, application: str, after: str, limit: int) -> Sequence[Row]:
    """The next orders in the order of their ids."""
    wanted = select(ORDERS).where(ORDERS.c.application == application, ORDERS.c.order_id > after)
    return await _rows(session, wanted.order_by(ORDERS.c.order_id).limit(limit))


async def orders_of(session: AsyncSession, application: str, order_ids: Collection[str]) -> dict[str, Row]:
    """Order id to its row."""
    return {row["order_id"]: row for row in await _among(session, ORDERS, application, "order_id", order_ids)}


async def order_ids_of(session: AsyncSession, application: str, service_ids: Collection[str]) -> dict[str, str]:
    """The service's own order id to the merchant's."""
    rows = await _among(session, ORDERS, application, "service_order_id", service_ids)
    return {row["service_order_id"]: row["order_id"] for row in rows}


async def payments_of(session: AsyncSession, application: str, payment_ids: Collection[str]) -> dict[str, Row]:
    """Payment id to what was kept of it."""
    return {row["payment_id"]: row for row in await _among(session, PAYMENTS, application, "payment_id", payment_ids)}


async def payments_of_orders(session: AsyncSession, application: str, order_ids: Collection[str]) -> Sequence[Row]:
    """All payments of these orders, first seen first."""
    rows = await _among(session, PAYMENTS, application, "order_id", order_ids)
    return sorted(rows, key=lambda row: (row["seen_at"], row["payment_id"]))


async def lapsed(session: AsyncSession, application: str, order_ids: Collection[str]) -> frozenset[str]:
    """The orders none of whose sessions was completed, and one of which is known to be over."""
    words: dict[str, set[str]] = {}
    for row in await _among(session, CHECKOUTS, application, "order_id", order_ids):
        words.setdefault(row["order_id"], set()).add(row["status"])
    return frozenset(
        one for one, found in words.items() if "COMPLETED" not in found and found & {"EXPIRED", "CANCELED"}
    )


async def findings_about(
    session: AsyncSession, application: str, kinds: Collection[str], subjects: Collection[str]
) -> dict[tuple[str, str], Row]:
    """(kind, subject) to the finding, open or closed."""
    return await findings_in(session, FINDINGS, application, kinds, subjects)


async def findings_in(
    session: AsyncSession, table: Table, application: str, kinds: Collection[str], subjects: Collection[str]
) -> dict[tuple[str, str], Row]:
    """The same of any plugin's table of findings."""
    if not subjects:
        return {}
    those = (table.c.application == application, among(table.c.kind, kinds), among(table.c.subject, subjects))
    return {(row["kind"], row["subject"]): row for row in await _rows(session, select(table).where(*those))}


async def _among(
    session: AsyncSession, table: Table, application: str, name: str, values: Collection[str]
) -> Sequence[Row]:
    if not values:
        return []
    return await _rows(session, select(table).where(table.c.application == application, among(table.c[name], values)))


async def _rows(session: AsyncSession, statement: Any) -> Sequence[Row]:
    return [dict(row) for row in (await session.execute(statement)).mappings()]
