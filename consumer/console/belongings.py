"""Belongings: which orders and subscriptions are a customer's, as the projections know it (`explain customer` asks the
same). Most events of an order or a subscription do not name the customer themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Column, Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, unindexed
from consumer.console.find import find, near
from consumer.errors import NotFound, UsageError
from consumer.ledger.engine.counting import each_of
from consumer.ledger.tables import EventRow
from handlers.access import tables as access
from handlers.fulfilment import tables as fulfilment

EVENTS: Table = EventRow.__table__
BELONGINGS_MAX: Final = 1_000
"""So many orders, checkouts or subscriptions of one customer; who has more is planned for by order, or by time."""
Keys = tuple[tuple[str, str], ...]
"""(application, key) of what belongs."""


async def of_customer(session: AsyncSession, customer: str, application: str | None) -> Keys:
    """The customer's orders and subscriptions. Raises UsageError when there are more than BELONGINGS_MAX."""
    orders = fulfilment.ORDERS.c.order_id, fulfilment.CHECKOUTS.c.order_id
    found = {
        (where, f"order:{id_}") for column in orders for where, id_ in await _of(session, column, customer, application)
    }
    subscriptions = await _of(session, access.SUBSCRIPTIONS.c.subscription_id, customer, application)
    found |= {(where, f"subscription:{id_}") for where, id_ in subscriptions}
    return tuple(sorted(found))


async def orders_of(session: AsyncSession, application: str, customer: str) -> Sequence[Mapping[str, Any]]:
    """The customer's orders as rows, those that are paid first, the newest payments before the older ones: at most
    BELONGINGS_MAX, and one more where there are more."""
    table = fulfilment.ORDERS
    mine = (unindexed(table.c.application) == application, table.c.customer == customer)
    in_order = (table.c.paid_at.desc().nulls_last(), table.c.order_id)
    rows = await session.execute(select(table).where(*mine).order_by(*in_order).limit(BELONGINGS_MAX + 1))
    return [dict(row) for row in rows.mappings()]


async def whose(session: AsyncSession, customer: str, application: str | None) -> Keys:
    """What belongs to the customer, and the customer: the keys of all that happened to him. Raises UsageError."""
    named = [application] if application is not None else await each_of(session, EVENTS.c.application)
    return (*await of_customer(session, customer, application), *((one, f"customer:{customer}") for one in named))


async def of_subscription(session: AsyncSession, subscription_id: str, application: str | None) -> Keys:
    """The customer whose access the subscription decides: what was decided is told of the customer."""
    columns = access.SUBSCRIPTIONS.c
    named = [application] if application is not None else await each_of(session, columns.application)
    wanted = select(columns.application, columns.customer).where(
        among(columns.application, named), columns.subscription_id == subscription_id, columns.customer.is_not(None)
    )
    return tuple(sorted((where, f"customer:{customer}") for where, customer in await session.execute(wanted)))


async def _of(
    session: AsyncSession, column: Column[Any], customer: str, application: str | None
) -> list[tuple[str, str]]:
    table: Table = column.table
    wanted = select(table.c.application, column).where(table.c.customer == customer, column.is_not(None))
    if application is not None:
        wanted = wanted.where(unindexed(table.c.application) == application)
    rows = [(where, id_) for where, id_ in await session.execute(wanted.limit(BELONGINGS_MAX + 1))]
    if len(rows) > BELONGINGS_MAX:
        raise UsageError("the customer has too many orders: name an order, or a time, instead of --customer")
    return rows


async def require_known(
    session: AsyncSession, kind: str, name: str, application: str | None, *, so: str | None = None
) -> None:
    """Raises NotFound when nothing is known of this event, order, subscription or customer: then it was mistyped. `so`:
    what that means for who asked."""
    if await _is_seen(session, kind, name, application):
        return
    if not await find(session, name, application=application):
        alike = ", ".join(await near(session, name, application=application)) or None
        unheard = "no event has this id" if kind == "event" else f"nothing is known of this {kind}"
        raise NotFound(f"{unheard}; {so}" if so else unheard, name=name[:100], near=alike)


async def _is_seen(session: AsyncSession, kind: str, name: str, application: str | None) -> bool:
    """Whether an index tells it at once; a look for any id is for what was mistyped."""
    if kind == "customer":
        return bool(await of_customer(session, name, application))
    column = {"event": EVENTS.c.id, "order": EVENTS.c.order_id, "subscription": EVENTS.c.subscription_id}[kind]
    wanted = select(EVENTS.c.seq).where(column == name)
    if kind == "event":
        named = [application] if application is not None else await each_of(session, EVENTS.c.application)
        wanted = wanted.where(among(EVENTS.c.application, named))
    elif application is not None:
        wanted = wanted.where(unindexed(EVENTS.c.application) == application)
    return await session.scalar(wanted.limit(1)) is not None
