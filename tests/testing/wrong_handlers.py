"""Wrong handlers as people write them. Each is refused by the kit, with this file and the line of what is wrong.

`# wrong` marks the line that has to be named.
"""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.request
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

import aiohttp
from sqlalchemy import Table, update
from sqlmodel import Field, SQLModel

from consumer.plugin import AccessGranted, Context, Event, FulfilmentRequested, RetryLater, handles

URL = "https://shop.example"
PAID = "fulfilment.requested"


class KitCount(SQLModel, table=True):
    """A counter that is no set."""

    __tablename__ = "kit_count"
    __table__: ClassVar[Table]

    name: str = Field(primary_key=True)
    count: int = 0


def body(event: Event[Any]) -> Mapping[str, Any]:
    return {"order": event.order_id}


@handles(PAID, name="wrong:key-random")
async def key_random(event: Event, ctx: Context) -> None:  # wrong
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    async with ctx.http.post(URL, json=body(event), headers=headers) as answer:
        answer.raise_for_status()


@handles(PAID, name="wrong:key-of-attempt")
async def key_of_attempt(event: Event, ctx: Context) -> None:  # wrong
    headers = {"Idempotency-Key": f"{event.id}-{ctx.attempt}"}
    async with ctx.http.post(URL, json=body(event), headers=headers) as answer:
        answer.raise_for_status()


@handles(PAID, name="wrong:no-key")
async def no_key(event: Event, ctx: Context) -> None:  # wrong
    async with ctx.http.post(URL, json=body(event)) as answer:
        answer.raise_for_status()


@handles(PAID, name="wrong:key-of-the-clock")
async def key_of_the_clock(event: Event, ctx: Context) -> None:  # wrong
    headers = {"Idempotency-Key": f"{event.order_id}-{ctx.now:%Y%m%d%H%M}"}
    async with ctx.http.post(URL, json=body(event), headers=headers) as answer:
        answer.raise_for_status()


@handles(PAID, name="wrong:own-aiohttp")
async def own_aiohttp(event: Event, ctx: Context) -> None:
    async with aiohttp.ClientSession() as http, http.post("http://127.0.0.1:9/parcels", json=body(event)):  # wrong
        pass


@handles(PAID, name="wrong:own-client-by-name")
async def own_client_by_name(event: Event, ctx: Context) -> None:
    async with aiohttp.ClientSession() as http:
        await http.post("http://warehouse.example/parcels", json=body(event))  # wrong


@handles(PAID, name="wrong:own-client-hushed")
async def own_client_hushed(event: Event, ctx: Context) -> None:
    try:
        await asyncio.open_connection("127.0.0.1", 9)  # wrong
    except Exception:  # noqa: BLE001 - that is what is wrong
        ctx.log.info("never mind")


@handles(PAID, name="wrong:blocking-client")
async def blocking_client(event: Event, ctx: Context) -> None:
    urllib.request.urlopen("http://127.0.0.1:9/parcels")  # noqa: ASYNC210 - as people write it  # wrong


@handles(PAID, name="wrong:sleeps")
async def sleeps(event: Event, ctx: Context) -> None:
    time.sleep(0.8)  # noqa: ASYNC251 - as people write it  # wrong
    async with ctx.http.put(f"{URL}/{event.order_id}", json=body(event)) as answer:
        answer.raise_for_status()


@handles(PAID, name="wrong:computes")
async def computes(event: Event, ctx: Context) -> None:
    end = time.monotonic() + 0.8
    while time.monotonic() < end:  # wrong
        pass
    async with ctx.http.put(f"{URL}/{event.order_id}", json=body(event)) as answer:
        answer.raise_for_status()


@handles(PAID, name="wrong:deaf")
async def deaf(event: Event, ctx: Context) -> None:
    await ctx.http.post(URL, json=body(event), headers={"Idempotency-Key": ctx.idempotency_key})  # wrong


@handles(PAID, name="wrong:hears-and-goes-on")
async def hears_and_goes_on(event: Event, ctx: Context) -> None:  # wrong
    async with ctx.http.put(f"{URL}/{event.order_id}", json=body(event)) as answer:
        if answer.ok:
            ctx.log.info("shipped")


@handles(PAID, name="wrong:hears-the-down-only")
async def hears_the_down_only(event: Event, ctx: Context) -> None:  # wrong
    headers = {"Idempotency-Key": ctx.idempotency_key}
    async with ctx.http.post(URL, json=body(event), headers=headers) as answer:
        if answer.status >= 500:
            raise RetryLater(60, "the warehouse is down")


_told: set[str | None] = set()


@handles(PAID, name="wrong:remembers")
async def remembers(event: Event, ctx: Context) -> None:  # wrong
    if event.order_id in _told:
        return
    _told.add(event.order_id)
    async with ctx.http.post(URL, json=body(event), headers={"Idempotency-Key": ctx.idempotency_key}) as answer:
        answer.raise_for_status()


@handles("access.granted", name="wrong:hears-and-grants-all-the-same")
async def hears_and_grants_all_the_same(event: Event[AccessGranted], ctx: Context) -> None:  # wrong
    async with ctx.http.put(f"{URL}/{event.payload.customer}", json={"allowed": True}) as answer:
        if not answer.ok:
            ctx.log.warning("not_granted", status=answer.status)


@handles("access.granted", name="wrong:grants-without-looking")
async def grants_without_looking(event: Event[AccessGranted], ctx: Context) -> None:
    async with ctx.http.put(f"{URL}/{event.payload.customer}", json={"allowed": True}):  # wrong
        pass


@handles(PAID, name="wrong:not-awaited")
async def not_awaited(event: Event, ctx: Context) -> None:
    ctx.http.post(URL, json=body(event), headers={"Idempotency-Key": ctx.idempotency_key})  # wrong


@handles(PAID, name="wrong:network-in-transaction", transactional=True)
async def network_in_transaction(event: Event, ctx: Context) -> None:
    await ctx.insert_new(KitCount(name="before"))
    async with aiohttp.ClientSession() as http:
        await http.post("http://127.0.0.1:9/parcels", json=body(event))  # wrong


@handles(PAID, name="wrong:http-in-transaction", transactional=True)
async def http_in_transaction(event: Event, ctx: Context) -> None:
    await ctx.http.post(URL, json=body(event))  # wrong


@handles(PAID, name="wrong:socket-in-transaction", transactional=True)
async def socket_in_transaction(event: Event, ctx: Context) -> None:
    socket.create_connection(("127.0.0.1", 9), timeout=1)  # wrong


@handles(PAID, name="wrong:commits", transactional=True)
async def commits(event: Event, ctx: Context) -> None:
    await ctx.insert_new(KitCount(name="commit"))
    await ctx.session.commit()  # wrong


@handles("order.payed", name="wrong:mistyped")
async def mistyped(event: Event, ctx: Context) -> None: ...


@handles("subscripton.*", name="wrong:mistyped-wildcard")
async def mistyped_wildcard(event: Event, ctx: Context) -> None: ...


@handles(PAID, name="wrong:mistyped-field")
async def mistyped_field(event: Event[FulfilmentRequested], ctx: Context) -> None:
    amount = event.payload.amout  # type: ignore[attr-defined]  # wrong: mypy says so, too
    async with ctx.http.put(f"{URL}/{event.order_id}", json={"amount": amount}) as answer:
        answer.raise_for_status()


@handles(PAID, name="wrong:answers")  # type: ignore[arg-type]  # mypy says so, too
async def answers(event: Event, ctx: Context) -> bool:  # wrong
    return True


@handles("access.granted", "access.revoked", name="wrong:last-wins")
async def last_wins(event: Event[AccessGranted], ctx: Context) -> None:  # wrong
    async with ctx.http.put(f"{URL}/{event.payload.customer}", json={"allowed": event.payload.allowed}) as answer:
        answer.raise_for_status()


@handles("order.*", name="wrong:last-row-wins", transactional=True)
async def last_row_wins(event: Event, ctx: Context) -> None:  # wrong
    await ctx.insert_new(KitCount(name=event.order_id or ""))
    await ctx.session.execute(update(KitCount).values(count=1 if event.type == "order.paid" else 0))


@handles(PAID, name="wrong:tells-nobody")
async def tells_nobody(event: Event, ctx: Context) -> None:  # wrong
    print(event.order_id)


@handles("subscription.renewed", name="wrong:wrong-sign", transactional=True)
async def wrong_sign(event: Event, ctx: Context) -> None:
    renews = event.received_at + timedelta(days=30)
    due = renews + timedelta(days=3)
    ctx.emit("kit.reminder_due", event.key, {"subscription_id": event.subscription_id}, not_before=due)


@handles(PAID, name="wrong:swallows-the-outage")
async def swallows_the_outage(event: Event, ctx: Context) -> None:  # wrong
    try:
        async with ctx.http.post(URL, json=body(event), headers={"Idempotency-Key": ctx.idempotency_key}) as answer:
            answer.raise_for_status()
    except aiohttp.ClientConnectionError:
        ctx.log.warning("warehouse_is_away")


@handles(PAID, name="wrong:swallows-the-time-out")
async def swallows_the_time_out(event: Event, ctx: Context) -> None:  # wrong
    try:
        async with ctx.http.post(URL, json=body(event), headers={"Idempotency-Key": ctx.idempotency_key}) as answer:
            answer.raise_for_status()
    except TimeoutError:
        ctx.log.warning("warehouse_is_slow")


@handles(PAID, name="wrong:first-attempt-only")
async def first_attempt_only(event: Event, ctx: Context) -> None:  # wrong
    if ctx.attempt > 1:
        return
    async with ctx.http.post(URL, json=body(event), headers={"Idempotency-Key": ctx.idempotency_key}) as answer:
        answer.raise_for_status()


@handles(PAID, name="wrong:swallows-429")
async def swallows_429(event: Event, ctx: Context) -> None:  # wrong
    async with ctx.http.post(URL, json=body(event), headers={"Idempotency-Key": ctx.idempotency_key}) as answer:
        if answer.status != 429:
            answer.raise_for_status()


@handles(PAID, name="wrong:swallows-4xx")
async def swallows_4xx(event: Event, ctx: Context) -> None:  # wrong
    async with ctx.http.post(URL, json=body(event), headers={"Idempotency-Key": ctx.idempotency_key}) as answer:
        if answer.status >= 500 or answer.status in (401, 429):
            answer.raise_for_status()


@handles(PAID, name="wrong:one-key-for-all")
async def one_key_for_all(event: Event, ctx: Context) -> None:  # wrong
    async with ctx.http.post(URL, json=body(event), headers={"Idempotency-Key": "ship"}) as answer:
        answer.raise_for_status()


@handles(PAID, name="wrong:key-of-the-customer")
async def key_of_the_customer(event: Event[FulfilmentRequested], ctx: Context) -> None:  # wrong
    headers = {"Idempotency-Key": event.payload.customer or "nobody"}
    async with ctx.http.post(URL, json=body(event), headers=headers) as answer:
        answer.raise_for_status()


@handles(PAID, name="wrong:one-key-for-two-parcels")
async def one_key_for_two_parcels(event: Event, ctx: Context) -> None:  # wrong
    for what in ("book", "gift"):
        parcel = {**body(event), "what": what}
        async with ctx.http.post(URL, json=parcel, headers={"Idempotency-Key": ctx.idempotency_key}) as answer:
            answer.raise_for_status()


@handles(PAID, name="wrong:key-of-a-hash")
async def key_of_a_hash(event: Event, ctx: Context) -> None:  # wrong
    headers = {"Idempotency-Key": str(hash(event.order_id))}
    async with ctx.http.post(URL, json=body(event), headers=headers) as answer:
        answer.raise_for_status()
