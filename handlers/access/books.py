"""Books: pages of what access knows, for whoever accounts for all of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among
from handlers.access.tables import CUSTOMERS, ENTITLEMENTS, SOURCES, SUBSCRIPTIONS

Row = Mapping[str, Any]


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
