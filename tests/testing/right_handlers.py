"""Twelve right handlers: the kit refuses none of them, `handlers check` warns of none, mypy finds nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import Table
from sqlmodel import Field, SQLModel

from consumer.plugin import (
    AccessGranted,
    AccessRevoked,
    Context,
    Event,
    FulfilmentRequested,
    Payload,
    Reject,
    RetryLater,
    SubscriptionEvent,
    handles,
)

URL = "https://shop.example"


class KitReminderDue(Payload, event="kit.reminder_due"):
    """A reminder's time has come."""

    subscription_id: str


class KitSale(SQLModel, table=True):
    """One row per paid order."""

    __tablename__ = "kit_sale"
    __table__: ClassVar[Table]

    order_id: str = Field(primary_key=True)
    amount: str | None = None


def key(ctx: Context, part: str = "") -> dict[str, str]:
    return {"Idempotency-Key": ctx.idempotency_key + part}


@handles("fulfilment.requested", name="right:ship")
async def ship(event: Event[FulfilmentRequested], ctx: Context) -> None:
    async with ctx.http.post(URL, json={"order": event.payload.order_id}, headers=key(ctx)) as answer:
        answer.raise_for_status()


@handles("fulfilment.requested", name="right:ship-by-status")
async def ship_by_status(event: Event[FulfilmentRequested], ctx: Context) -> None:
    async with ctx.http.post(URL, json={"order": event.payload.order_id}, headers=key(ctx)) as answer:
        if answer.status in (409, 422):
            raise Reject("the warehouse will never take it")
        if answer.status >= 400:
            raise RetryLater(60, "the warehouse is busy")


@handles("fulfilment.requested", name="right:two-calls")
async def two_calls(event: Event[FulfilmentRequested], ctx: Context) -> None:
    for part in ("parcel", "invoice"):
        async with ctx.http.post(f"{URL}/{part}", json={}, headers=key(ctx, part)) as answer:
            answer.raise_for_status()


@handles("fulfilment.requested", name="right:put")
async def put(event: Event[FulfilmentRequested], ctx: Context) -> None:
    async with ctx.http.put(f"{URL}/{event.payload.order_id}", json={"paid": True}) as answer:
        answer.raise_for_status()


@handles("fulfilment.requested", name="right:raise-option")
async def raise_option(event: Event[FulfilmentRequested], ctx: Context) -> None:
    await ctx.http.post(URL, json={}, headers=key(ctx), raise_for_status=True)


@handles("fulfilment.requested", name="right:keep", transactional=True)
async def keep(event: Event[FulfilmentRequested], ctx: Context) -> None:
    await ctx.insert_new(KitSale(order_id=event.payload.order_id, amount=event.payload.amount))


@handles("access.granted", "access.revoked", name="right:access")
async def access(event: Event[AccessGranted | AccessRevoked], ctx: Context) -> None:
    change = event.payload
    body = {"allowed": change.allowed, "version": change.version}
    url = f"{URL}/{change.customer}/{change.entitlement}"
    async with ctx.http.post(url, json=body, headers=key(ctx)) as answer:
        answer.raise_for_status()


@handles("subscription.renewed", name="right:remember", transactional=True)
async def remember(event: Event[SubscriptionEvent], ctx: Context) -> None:
    due = event.received_at + timedelta(days=27)
    ctx.emit("kit.reminder_due", event.key, {"subscription_id": event.subscription_id}, not_before=due)


@handles("kit.reminder_due", name="right:remind")
async def remind(event: Event[KitReminderDue], ctx: Context) -> None:
    body = {"subscription": event.payload.subscription_id}
    async with ctx.http.post(f"{URL}/mails", json=body, headers=key(ctx)) as answer:
        answer.raise_for_status()


@handles("order.*", name="right:ask", transactional=True)
async def ask(event: Event, ctx: Context) -> None:
    if event.order_id is not None and event.type == "order.expired":
        ctx.request_read("order", event.order_id)


@handles("*", name="right:log", fulfils=False)
async def log(event: Event, ctx: Context) -> None:
    # Nobody depends on it: that it fails is no reason to try again.
    async with ctx.http.post(f"{URL}/log", json={"type": event.type}, headers=key(ctx)) as answer:
        if not answer.ok:
            ctx.log.info("not_logged", status=answer.status)


@handles("fulfilment.requested", name="right:in-a-thread")
async def in_a_thread(event: Event[FulfilmentRequested], ctx: Context) -> None:
    import asyncio
    import time

    await asyncio.to_thread(time.sleep, 0.6)
    async with ctx.http.post(URL, json={}, headers=key(ctx)) as answer:
        answer.raise_for_status()


RIGHT: tuple[Any, ...] = (
    ship, ship_by_status, two_calls, put, raise_option, keep, access, remember, remind, ask, log, in_a_thread,
)  # fmt: skip
