"""What each run begins with: a ledger of its own, a log with its webhooks, and orders that are registered or not."""

from __future__ import annotations

import cProfile
import gc
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
from sqlalchemy import Table, insert, or_, select, text

from consumer.broker import Broker, EmbeddedBroker, open_broker
from consumer.cli.bootstrap import calm_collector
from consumer.clock import SystemClock
from consumer.events import Event, Locators, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import lanes
from consumer.ledger.tables import RunRow, RunStatus
from consumer.wire import own_event
from consumer.work.execution.contexts import Contexts
from consumer.work.registry import Registry
from consumer.work.worker import WorkerConfig
from handlers.fulfilment.tables import ORDERS
from tests.bench.ratio import Cost
from tests.support.ports import eventually
from tests.support.postgres import create_database
from tests.work.workshop import Workshop, make_topics, message

DATABASES = ("SQLite", "PostgreSQL")
WITHIN_S = 300
AMOUNT, CUSTOMER = "25.00", "customer-1"
AT, FAR = datetime(2026, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_RUNS: Table = RunRow.__table__


@dataclass(frozen=True, kw_only=True)
class Job:
    """Orders to be worked off, numbered from `first` on: whether the merchant registered them, and how many events of
    each there will have been (its webhooks, reads and what is derived)."""

    registry: Registry
    orders: int
    events_each: int = 2
    registered: bool = True
    read: bool = False
    first: int = 0


def url_of(name: str, folder: Path, postgres: str) -> str:
    """An empty database of that kind."""
    return f"sqlite+aiosqlite:///{folder / uuid.uuid4().hex}.db" if name == "SQLite" else create_database(postgres)


@dataclass(frozen=True)
class Place:
    """Where a run happens: its ledger, its log, and the topic of its own there."""

    database: Database
    broker: Broker
    topic: str


@asynccontextmanager
async def prepared(
    folder: Path, url: str, events: Sequence[Event], *, registered: Sequence[int] = (), kafka: str = ""
) -> AsyncIterator[Place]:
    """A ledger that knows the orders of these numbers, and a log with these events: embedded, or at this address. The
    collector of garbage looks at none of this: each side finds it as a role that has started does."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    database, broker = Database(url), open_broker(kafka) if kafka else EmbeddedBroker(folder / f"{topic}.log")
    await schema.upgrade(database)
    await broker.start()
    try:
        await make_topics(broker, topic)
        if registered:
            async with database.transaction() as session:
                await session.execute(insert(ORDERS), [_registered(number) for number in registered])
        await broker.publish_many(topic, [message(event) for event in events])
        gc.unfreeze()  # what an earlier run left is collected
        calm_collector()
        yield Place(database, broker, topic)
    finally:
        await broker.stop()
        await database.stop()


async def worked_off(
    folder: Path, url: str, job: Job, profile: cProfile.Profile | None = None, *, kafka: str = ""
) -> Cost:
    """What the worker takes for all of it once it has joined its group, as what it is measured against is told; in a
    ledger that may have a past with runs that are due after `FAR`."""
    numbers = range(job.first, job.first + job.orders)
    events, registered = webhooks(job.orders, job.first), numbers if job.registered else ()
    if job.read:
        events += [order_observed(number) for number in numbers]
    async with prepared(folder, url, events, registered=registered, kafka=kafka) as place:
        config = WorkerConfig(topic=place.topic, group=place.topic, drain_s=5)
        contexts, database = Contexts(SystemClock()), place.database
        shop = Workshop(database, place.broker, [], registry=job.registry, contexts=contexts, config=config)
        handlers = [handler.name for handler in job.registry.handlers]
        newest = await _newest(database) + job.orders * job.events_each
        async with shop.working() as worker:
            await eventually(lambda: worker.polls, within_s=WITHIN_S, every_s=0.001)
            began_s, cpu_s = time.perf_counter(), time.process_time()
            if profile is not None:
                profile.enable()
            await eventually(lambda: _is_done(database, newest, handlers), within_s=WITHIN_S, every_s=0.1)
            cost = Cost(job.orders, time.process_time() - cpu_s, time.perf_counter() - began_s)
        if profile is not None:
            profile.disable()
        return cost


async def _newest(database: Database) -> int:
    async with database.reading() as session:
        return int((await session.execute(text("SELECT max(seq) FROM events"))).scalar_one() or 0)


async def _is_done(database: Database, newest: int, handlers: Sequence[str]) -> bool:
    """Whether all events came in and nothing waits that is due before `FAR`. By index, in one statement each: it is
    asked again and again, and what it takes is counted as ours."""
    if await _newest(database) < newest:
        return False
    due = select(_RUNS.c.seq).where(lanes.is_status(RunStatus.RETRYING), _RUNS.c.next_at < FAR)
    async with database.reading() as session:
        waits = await session.execute(select(or_(*(due.where(_RUNS.c.handler == one).exists() for one in handlers))))
    return not waits.scalar_one()


def webhooks(orders: int, first: int = 0) -> list[Event]:
    """An `order.paid` of each, numbered from there."""
    return [_order_paid(number) for number in range(first, first + orders)]


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
