"""Registering a checkout: what the merchant says it expects, before any money moves (cases F20, F21)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.plugin import insert_into
from handlers.fulfilment.order import Registration, decimal
from handlers.fulfilment.tables import CHECKOUTS, ORDERS

TERMS: Final = ("order_id", "customer", "expected_amount", "mode", "price_id")

Terms = Mapping[str, str | None]
"""What is registered of a session, by its names in the query API; None, or no such name: nothing."""


async def register(session: AsyncSession, application: str, order_id: str, said: Registration, at: datetime) -> None:
    """Write the registration at once, in the caller's transaction, so that a payment that follows is compared with it.

    What follows from it for an order that is paid already is done by the event `checkout.registered`.
    """
    await register_session(session, application, order_id, said, at)
    insert = insert_into(ORDERS, session.get_bind().dialect.name)
    new = insert.excluded
    await session.execute(
        insert.values(
            application=application,
            order_id=order_id,
            observed_version=0,
            registered_at=at,
            session_id=said.session_id,
            customer=said.customer,
            expected_amount=said.expected_amount,
        ).on_conflict_do_update(
            index_elements=["application", "order_id"],
            set_={
                "registered_at": func.coalesce(ORDERS.c.registered_at, new.registered_at),
                "session_id": new.session_id,
                "customer": func.coalesce(new.customer, ORDERS.c.customer),
                "expected_amount": new.expected_amount,
            },
        )
    )


async def register_session(
    session: AsyncSession, application: str, order_id: str, said: Registration, at: datetime
) -> None:
    """The session's row; what its events said stays, and so does a newer registration of the same session."""
    values = {
        "order_id": order_id,
        "registered_at": at,
        "customer": said.customer,
        "expected_amount": said.expected_amount,
        "mode": said.mode,
        "price_id": said.price_id,
    }
    insert = insert_into(CHECKOUTS, session.get_bind().dialect.name)
    await session.execute(
        insert.values(
            application=application, session_id=said.session_id, status="OPEN", **values
        ).on_conflict_do_update(
            index_elements=["application", "session_id"],
            set_=values,
            where=CHECKOUTS.c.registered_at.is_(None) | (CHECKOUTS.c.registered_at <= at),
        )
    )


async def newer_registration(
    session: AsyncSession, application: str, order_id: str, at: datetime
) -> Registration | None:
    """What the merchant said last about this order, if that was after `at`: a paid order is compared with the newest
    registration, in whatever order they are worked off."""
    of_order = (CHECKOUTS.c.application == application) & (CHECKOUTS.c.order_id == order_id)
    wanted = select(CHECKOUTS).where(of_order, CHECKOUTS.c.registered_at > at)
    row = (await session.execute(wanted.order_by(CHECKOUTS.c.registered_at.desc()).limit(1))).mappings().first()
    if row is None:
        return None
    return Registration(session_id=row["session_id"], customer=row["customer"], expected_amount=row["expected_amount"])


async def hold_session(session: AsyncSession, application: str, session_id: str) -> None:
    """Nobody else registers this session before the caller's transaction ends: its row is made, if it is not there, and
    locked."""
    insert = insert_into(CHECKOUTS, session.get_bind().dialect.name)
    await session.execute(
        insert.values(application=application, session_id=session_id, status="OPEN").on_conflict_do_nothing()
    )
    one = (CHECKOUTS.c.application == application) & (CHECKOUTS.c.session_id == session_id)
    await session.execute(select(CHECKOUTS.c.session_id).where(one).with_for_update())


async def known_terms(session: AsyncSession, application: str, session_id: str) -> Terms | None:
    """What the merchant registered for this session, None when nothing: what only its events said does not count."""
    one = (CHECKOUTS.c.application == application) & (CHECKOUTS.c.session_id == session_id)
    wanted = select(*(CHECKOUTS.c[name] for name in TERMS)).where(one, CHECKOUTS.c.registered_at.is_not(None))
    row = (await session.execute(wanted)).mappings().first()
    return None if row is None else dict(row)


def price_of(known: Terms, said: Terms) -> str | None:
    """The price that was said, or the one that is known where no amount takes its place: who registers again need not
    know it. Pure."""
    takes_its_place = said.get("expected_amount") is not None and known["expected_amount"] is None
    return said.get("price_id") or (None if takes_its_place else known["price_id"])


def contradicted(known: Terms, said: Terms) -> tuple[str, ...]:
    """The names of the terms that are known, and were now said otherwise or left out. They may be added to, no more:
    an open link sells what is registered (cases C18, F21). Pure."""
    return tuple(name for name in TERMS if known[name] is not None and not _is_same(name, known[name], said.get(name)))


def _is_same(name: str, before: str | None, now: str | None) -> bool:
    if name == "expected_amount" and decimal(now) is not None:
        return decimal(before) == decimal(now)
    return before == now
