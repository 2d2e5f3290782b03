"""Sessions: what their events and their reads tell of checkouts, and whose the payments made in them are."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update

from consumer.plugin import Context, Event
from handlers.findings import close_finding
from handlers.fulfilment.lookups import session_known
from handlers.fulfilment.money import claim_payments, payments_of, waits_for_session
from handlers.fulfilment.options import Options
from handlers.fulfilment.order import SESSION_RANK
from handlers.fulfilment.tables import CHECKOUTS, FINDINGS, PAYMENTS, FulfilmentCheckout
from handlers.pointers import look

MODES = ("payment", "subscription")


async def heard(
    ctx: Context, event: Event, session_id: str, *, status: Any, order_id: str | None
) -> tuple[str | None, str | None]:
    """Record what an event or a read tells of a session: its status (the higher rank stays), and its order and mode
    where they are not known. Gives both as they are known now. The session's lock is taken before any order's."""
    key: dict[str, Any] = {"application": ctx.application, "session_id": session_id}
    known_status = status if isinstance(status, str) and status in SESSION_RANK else "OPEN"
    completed_at = event.received_at if known_status == "COMPLETED" else None
    options: Options = ctx.options
    mode = said if (said := look(event, options.mode)) in MODES else None
    fresh = FulfilmentCheckout(**key, order_id=order_id, status=known_status, completed_at=completed_at, mode=mode)
    if await ctx.insert_new(fresh) or (row := await ctx.locked(FulfilmentCheckout, **key)) is None:
        await take_payments(ctx, event, session_id)
        return order_id, mode
    higher = max(known_status, row["status"], key=lambda word: SESSION_RANK.get(word, 0))
    order_id = row["order_id"] or order_id
    mode = row["mode"] or (mode if row["registered_at"] is None else None)  # what is registered is the merchant's word
    if (higher, order_id, mode) != (row["status"], row["order_id"], row["mode"]):
        one = (CHECKOUTS.c.application == ctx.application) & (CHECKOUTS.c.session_id == session_id)
        values = {"status": higher, "order_id": order_id, "mode": mode}
        values["completed_at"] = row["completed_at"] or completed_at
        await ctx.session.execute(update(CHECKOUTS).where(one).values(values))
        await take_payments(ctx, event, session_id)
    return order_id, mode


async def take_payments(ctx: Context, event: Event, session_id: str) -> None:
    """What was paid in this session before anybody said whose it is (case B33). Where its order is not known yet, a
    read of that takes them, and is asked for: one under way may have looked for them before. A subscription's session
    has none, and its payments are no orphans."""
    wanted = select(PAYMENTS.c.payment_id).where(payments_of(ctx.application), waits_for_session(session_id))
    if not (waiting := (await ctx.session.execute(wanted)).scalars().all()):
        return
    known = await session_known(ctx, session_id)
    if known.is_subscriptions:
        for payment_id in waiting:
            await close_finding(ctx, FINDINGS, "orphan_payment", payment_id, event.received_at)
    elif known.order_id is not None and known.is_known:
        await claim_payments(ctx, event, known.order_id, waits_for_session(session_id))
    elif known.order_id is not None and not ctx.is_history:
        ctx.request_read("order", known.order_id)
