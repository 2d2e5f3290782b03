"""What one writes without a framework, on the same log and ledger: a commit for each message."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import orjson
from sqlalchemy import Executable, Table, insert, update

from consumer.broker.base import next_offsets
from consumer.columns import insert_into
from consumer.ledger import Database
from consumer.ledger.tables import EventRow, OutboxRow
from handlers.fulfilment.tables import ORDERS
from tests.bench.job.prepared import prepared, webhooks
from tests.bench.ratio import Cost

Body = dict[str, object]
_EVENTS: Table = EventRow.__table__
_OUTBOX: Table = OutboxRow.__table__


async def main_job(folder: Path, url: str, orders: int) -> Cost:
    """For each webhook a transaction that knows a duplicate by its unique key, makes the order PAID and says what is to
    be done; then the effect, and a transaction that marks it."""
    return await _worked_off(folder, url, orders, _paid, registered=range(orders))


async def effect(folder: Path, url: str, orders: int, *, kafka: str = "") -> Cost:
    """For each webhook one transaction: its event, which a duplicate violates, and the effect before the commit."""
    return await _worked_off(folder, url, orders, _called, kafka=kafka)


async def _worked_off(
    folder: Path,
    url: str,
    orders: int,
    one: Callable[[Database, Body], Awaitable[None]],
    *,
    registered: Sequence[int] = (),
    kafka: str = "",
) -> Cost:
    async with prepared(folder, url, webhooks(orders), registered=registered, kafka=kafka) as place:
        subscription = place.broker.subscribe([place.topic], place.topic)
        await subscription.start()
        try:
            began_s, cpu_s, done = time.perf_counter(), time.process_time(), 0
            while done < orders:
                records = await subscription.poll(100, 0.5)
                for record in records:
                    await one(place.database, orjson.loads(record.value))
                await subscription.commit(next_offsets(records))
                done += len(records)
            return Cost(orders, time.process_time() - cpu_s, time.perf_counter() - began_s)
        finally:
            await subscription.stop()


async def _called(database: Database, body: Body) -> None:
    now, order = datetime.now(UTC), _object_of(body)
    async with database.transaction() as session:
        new = await session.execute(_event(body, order, now, database.dialect))
        if new.first() is not None:
            await _nothing()


async def _paid(database: Database, body: Body) -> None:
    now, order = datetime.now(UTC), _object_of(body)
    async with database.transaction() as session:
        new = await session.execute(_event(body, order, now, database.dialect))
        if new.first() is None:
            return
        paid = {"paid_at": now, "requested_at": now, "amount": order["amount"], "proof_event_id": body["id"]}
        one = (ORDERS.c.application == "default") & (ORDERS.c.order_id == order["order_id"])
        await session.execute(update(ORDERS).where(one, ORDERS.c.paid_at.is_(None)).values(**paid))
        asked = {"application": "default", "event_id": f"drv_{body['id']}", "type": "fulfilment.requested",
                 "key": f"order:{order['order_id']}", "data": orjson.dumps(order), "not_before": now,
                 "created_at": now, "cause": body["id"], "handler": "naive"}  # fmt: skip
        await session.execute(insert(_OUTBOX).values(asked))
    await _nothing()
    async with database.transaction() as session:
        done = _OUTBOX.c.event_id == f"drv_{body['id']}"
        await session.execute(update(_OUTBOX).where(_OUTBOX.c.application == "default", done).values(published_at=now))


def _event(body: Body, order: dict[str, str], now: datetime, dialect: str) -> Executable:
    row = {"application": "default", "id": body["id"], "type": body["type"], "key": f"order:{order['order_id']}",
           "trust": "signed", "source": "webhook", "raw": orjson.dumps(body), "received_at": now,
           "recorded_at": now, "delivery_id": ""}  # fmt: skip
    return insert_into(_EVENTS, dialect).values(row).on_conflict_do_nothing().returning(_EVENTS.c.seq)


def _object_of(body: Body) -> dict[str, str]:
    data = body["data"]
    assert isinstance(data, dict)
    found: dict[str, str] = data["object"]
    return found


async def _nothing() -> None:
    """The effect."""
