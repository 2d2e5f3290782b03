"""Books: pages of what both built-in plugins know, for whoever accounts for all of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among
from handlers.access.tables import CUSTOMERS, ENTITLEMENTS, SOURCES, SUBSCRIPTIONS
from handlers.access.tables import FINDINGS as ACCESS_FINDINGS
from handlers.fulfilment.tables import CHECKOUTS, ORDERS, PAYMENTS
from handlers.fulfilment.tables import FINDINGS as FULFILMENT_FINDINGS

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


async def requested_by_service_id(
    session: AsyncSession, application: str, service_ids: Collection[str]
) -> dict[str, list[str]]:
    """The service's own order id to the merchant's ids of all orders that were requested and have it, but for those
    that were said to be unfulfillable since."""
    rows = await _among(session, ORDERS, application, "service_order_id", service_ids)
    found: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: row["order_id"]):
        if row["requested_at"] is not None and row["unfulfillable_at"] is None:
            found.setdefault(row["service_order_id"], []).append(row["order_id"])
    return found


async def payments_of(session: AsyncSession, application: str, payment_ids: Collection[str]) -> dict[str, Row]:
    """Payment id to what was kept of it."""
    return {row["payment_id"]: row for row in await _among(session, PAYMENTS, application, "payment_id", payment_ids)}


async def subscription_sessions(
    session: AsyncSession, application: str, session_ids: Collection[str]
) -> frozenset[str]:
    """Of these checkouts, those of subscriptions, of which no order comes."""
    rows = await _among(session, CHECKOUTS, application, "session_id", session_ids)
    return frozenset(row["session_id"] for row in rows if row["mode"] == "subscription")


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


async def findings_of_orders(
    session: AsyncSession, application: str, kinds: Collection[str], subjects: Collection[str]
) -> dict[tuple[str, str], Row]:
    """(kind, subject) to fulfilment's finding, open or closed."""
    return await _findings(session, FULFILMENT_FINDINGS, application, kinds, subjects)


async def findings_of_access(
    session: AsyncSession, application: str, kinds: Collection[str], subjects: Collection[str]
) -> dict[tuple[str, str], Row]:
    """The same of access."""
    return await _findings(session, ACCESS_FINDINGS, application, kinds, subjects)


async def subscriptions_after(session: AsyncSession, application: str, after: str, limit: int) -> Sequence[Row]:
    """The next subscriptions in the order of their ids."""
    mine = (SUBSCRIPTIONS.c.application == application, SUBSCRIPTIONS.c.subscription_id > after)
    return await _rows(
        session, select(SUBSCRIPTIONS).where(*mine).order_by(SUBSCRIPTIONS.c.subscription_id).limit(limit)
    )


async def subscriptions_of(session: AsyncSession, application: str, ids: Collection[str]) -> dict[str, Row]:
    """Subscription id to its row."""
    rows = await _among(session, SUBSCRIPTIONS, application, "subscription_id", ids)
    return {row["subscription_id"]: row for row in rows}


async def subscriptions_of_customers(
    session: AsyncSession, application: str, customers: Collection[str]
) -> dict[str, list[Row]]:
    """Customer to all their subscriptions."""
    return _by_customer(await _among(session, SUBSCRIPTIONS, application, "customer", customers))


async def customers_after(session: AsyncSession, application: str, after: str, limit: int) -> Sequence[str]:
    """The next customers about whom a decision stands, in the order of their names."""
    mine = (ENTITLEMENTS.c.application == application, ENTITLEMENTS.c.customer > after)
    wanted = select(ENTITLEMENTS.c.customer).where(*mine).distinct().order_by(ENTITLEMENTS.c.customer).limit(limit)
    return (await session.execute(wanted)).scalars().all()


async def decisions_of(session: AsyncSession, application: str, customers: Collection[str]) -> dict[str, list[Row]]:
    """Customer to the decisions that stand."""
    return _by_customer(await _among(session, ENTITLEMENTS, application, "customer", customers))


async def operator_sources_of(
    session: AsyncSession, application: str, customers: Collection[str]
) -> dict[str, list[Row]]:
    """Customer to the holds and gifts that were not ended."""
    rows = await _among(session, SOURCES, application, "customer", customers)
    return _by_customer([row for row in rows if row["ended_at"] is None])


async def decided_at(session: AsyncSession, application: str, customers: Collection[str]) -> dict[str, Any]:
    """Customer to the time of the last decision."""
    return {
        row["customer"]: row["as_of"] for row in await _among(session, CUSTOMERS, application, "customer", customers)
    }


async def _findings(
    session: AsyncSession, table: Table, application: str, kinds: Collection[str], subjects: Collection[str]
) -> dict[tuple[str, str], Row]:
    if not subjects:
        return {}
    those = (table.c.application == application, among(table.c.kind, kinds), among(table.c.subject, subjects))
    return {(row["kind"], row["subject"]): row for row in await _rows(session, select(table).where(*those))}


def _by_customer(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["customer"], []).append(row)
    return found


async def _among(
    session: AsyncSession, table: Table, application: str, name: str, values: Collection[str]
) -> Sequence[Row]:
    if not values:
        return []
    return await _rows(session, select(table).where(table.c.application == application, among(table.c[name], values)))


async def _rows(session: AsyncSession, statement: Any) -> Sequence[Row]:
    return [dict(row) for row in (await session.execute(statement)).mappings()]
