"""What each run begins with: a ledger of its own, a log with its webhooks, and orders that are registered or not."""

from __future__ import annotations

import cProfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
from sqlalchemy import insert, text

from consumer.broker import Broker, EmbeddedBroker
from consumer.clock import SystemClock
from consumer.events import Event, Locators, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import runs
from consumer.wire import own_event
from consumer.work.execution.contexts import Contexts
from consumer.work.registry import Registry
from handlers.fulfilment.tables import ORDERS
from tests.bench.ratio import Cost
from tests.support.ports import eventually
from tests.support.postgres import create_database
from tests.work.workshop import TOPIC, Workshop, make_topics, message

DATABASES = ("SQLite", "PostgreSQL")
WITHIN_S = 300
AMOUNT, CUSTOMER = "25.00", "customer-1"
AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Job:
    """Orders to be worked off: whether the merchant registered them, and how many events of each there will have been
    (its webhooks, reads and what is derived)."""

    registry: Registry
    orders: int
    events_each: int = 2
    registered: bool = True
    read: bool = False


def url_of(name: str, folder: Path, postgres: str) -> str:
    """An empty database of that kind."""
    return f"sqlite+aiosqlite:///{folder / uuid.uuid4().hex}.db" if name == "SQLite" else create_database(postgres)


@asynccontextmanager
async def prepared(
    folder: Path, url: str, events: Sequence[Event], *, registered: int = 0
) -> AsyncIterator[tuple[Database, Broker]]:
    """A ledger that knows the first orders, and a log with these events."""
    database, broker = Database(url), EmbeddedBroker(folder / f"{uuid.uuid4().hex}.log")
    await schema.upgrade(database)
    await broker.start()
    try:
        await make_topics(broker)
        if registered:
            async with database.transaction() as session:
                await session.execute(insert(ORDERS), [_registered(number) for number in range(registered)])
        await broker.publish_many(TOPIC, [message(event) for event in events])
        yield database, broker
    finally:
        await broker.stop()
        await database.stop()


async def worked_off(folder: Path, url: str, job: Job, profile: cProfile.Profile | None = None) -> Cost:
    """What the worker takes for all of it."""
    events = webhooks(job.orders)
    if job.read:
        events += [order_observed(number) for number in range(job.orders)]
    async with prepared(folder, url, events, registered=job.orders if job.registered else 0) as (database, broker):
        shop = Workshop(database, broker, [], registry=job.registry, contexts=Contexts(SystemClock()))
        began_s, cpu_s = time.perf_counter(), time.process_time()
        if profile is not None:
            profile.enable()
        async with shop.working():
            newest = job.orders * job.events_each
            await eventually(lambda: _is_done(database, newest), within_s=WITHIN_S, every_s=0.1)
            cost = Cost(job.orders, time.process_time() - cpu_s, time.perf_counter() - began_s)
        if profile is not None:
            profile.disable()
        return cost


async def _is_done(database: Database, newest: int) -> bool:
    """Whether so many events came in and nothing waits."""
    async with database.reading() as session:
        seq = (await session.execute(text("SELECT max(seq) FROM events"))).scalar_one()
        return bool(seq) and seq >= newest and not await runs.count_by_status(session)


def webhooks(orders: int) -> list[Event]:
    """An `order.paid` of each."""
    return [_order_paid(number) for number in range(orders)]


def _registered(number: int) -> dict[str, object]:
    return {
        "application": "default",
        "order_id": f"order-{number}",
        "observed_version": 0,
        "registered_at": AT,
        "session_id": f"cs_{number}",
        "customer": CUSTOMER,
        "expected_amount": AMOUNT,
    }


def _order(number: int) -> dict[str, str]:
    return {"id": f"ord_{number}", "order_id": f"order-{number}", "status": "PAID", "amount": AMOUNT,
            "customer_reference": CUSTOMER}  # fmt: skip


def _order_paid(number: int) -> Event:
    raw = orjson.dumps({"id": f"evt_{number}", "type": "order.paid", "created_at": AT.isoformat(),
                        "data": {"object": _order(number)}})  # fmt: skip
    return build_event(
        raw, Locators(), application="default", trust=Trust.SIGNED, source=Source.WEBHOOK, received_at=AT
    )


def order_observed(number: int) -> Event:
    """What `sync` tells of an order that it was asked to read."""
    said = {"version": number + 1, "read_at": AT.isoformat(), "record": _order(number)}
    return own_event(
        application="default", id=f"obs_{number}", type="order.observed", key=f"order:order-{number}",
        source=Source.READ, at=AT, data=said,
    )  # fmt: skip
