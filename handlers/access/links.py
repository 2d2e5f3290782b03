"""The customer link: whose a checkout is, as the merchant registered it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.plugin import insert_into
from handlers.access.tables import LINKS


async def link(
    session: AsyncSession, application: str, session_id: str, order_id: str | None, customer: str, at: datetime
) -> None:
    """Write the link at once, in the caller's transaction; a newer registration of the same session replaces it.

    What follows for a subscription that waits for it is done by the event `checkout.registered` (case A37).
    """
    insert = insert_into(LINKS, session.get_bind().dialect.name)
    values = {"order_id": order_id, "customer": customer, "registered_at": at}
    await session.execute(
        insert.values(application=application, session_id=session_id, **values).on_conflict_do_update(
            index_elements=["application", "session_id"], set_=values, where=LINKS.c.registered_at <= at
        )
    )
