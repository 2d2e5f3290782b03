"""Working: the worker (group commit) against a consumer that commits once per message; both with the same handler,
the same statements, the same Kafka and PostgreSQL."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import orjson
import uvloop
from sqlalchemy import Table, text
from sqlmodel import Field, SQLModel

from consumer.broker import Broker, Message, Record, TopicConfig, open_broker
from consumer.broker.base import next_offsets
from consumer.clock import SystemClock
from consumer.events import Locators, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import events, runs
from consumer.ledger.handling.runs import Run
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Event, Handler, declared, handles
from consumer.telemetry.metrics import Metrics
from consumer.telemetry.traces import Tracing
from consumer.wire import pack_event, unpack_event
from consumer.work.build import build_worker
from consumer.work.execution.contexts import Contexts
from consumer.work.observer import Observer
from consumer.work.registry import Registry
from consumer.work.worker import WorkerConfig
from tests.bench.ratio import Ratio, one_core
from tests.support.ports import eventually
from tests.support.postgres import create_database

OURS = 12_000
BASELINE = 1_500
ROUNDS = 3
BAR = 6.0


class BenchTally(SQLModel, table=True):
    """What the handler writes: one row per paid order, as a merchant's own projection would."""

    __tablename__ = "bench_tally"
    __table__: ClassVar[Table]

    event_id: str = Field(primary_key=True)
    order_id: str


@handles("order.paid", transactional=True, name="bench:tally")
async def tally(event: Event, ctx: Context) -> None:
    """Write one row in the transaction."""
    ctx.session.add(BenchTally(event_id=event.id, order_id=event.order_id or ""))


def measure(_: Path, postgres: str, kafka_url: str) -> list[Ratio]:
    """Alternate between the two, each on a database and a topic of its own; this process keeps to one core."""
    one_core(0)
    rounds = []
    for number in range(ROUNDS + 1):
        ours = uvloop.run(_ours(kafka_url, create_database(postgres)))
        baseline = uvloop.run(_baseline(kafka_url, create_database(postgres)))
        if number:  # the first round warms up
            rounds.append((ours, baseline))
    what = "work: transactional handler, PostgreSQL, Kafka"
    return [Ratio(what, "a consumer that commits once per message", rounds, BAR)]


async def _ours(kafka_url: str, database_url: str) -> float:
    database, broker, topic = await _prepare(kafka_url, database_url, OURS)
    clock = SystemClock()
    worker = build_worker(
        database=database,
        broker=broker,
        registry=Registry([_handler()]),
        contexts=Contexts(clock),
        locators={"default": Locators()},
        clock=clock,
        observer=Observer(Metrics(), Tracing()),
        config=WorkerConfig(topic=topic, group=topic),
    )
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    try:
        await eventually(lambda: worker.polls, within_s=30)
        began = time.perf_counter()
        await eventually(lambda: _tallied(database, OURS), within_s=120, every_s=0.05)
        seconds = time.perf_counter() - began
    finally:
        stop.set()
        await task
        await _close(database, broker)
    return OURS / seconds


async def _baseline(kafka_url: str, database_url: str) -> float:
    """The same tables, statements and handler, one transaction per message; offsets are committed per poll."""
    database, broker, topic = await _prepare(kafka_url, database_url, BASELINE)
    subscription = broker.subscribe([topic], topic)
    try:
        await subscription.start()
        done, began = 0, time.perf_counter()
        while done < BASELINE:
            records = await subscription.poll(100, 0.5)
            for record in records:
                await _one(database, record)
            await subscription.commit(next_offsets(records))
            done += len(records)
        seconds = time.perf_counter() - began
    finally:
        await subscription.stop()
        await _close(database, broker)
    return BASELINE / seconds


async def _one(database: Database, record: Record) -> None:
    handler, now = _handler(), datetime.now(UTC)
    event = unpack_event(record.key, record.value, record.headers, Locators())
    async with database.transaction() as session:
        new = await events.record(session, [event], now)
        for (application, event_id), seq in new.items():
            ctx = Contexts(SystemClock()).make(handler, event, attempt=1, plan=None, session=session)
            await handler.function(event, ctx)
            run = Run(
                application=application,
                event_id=event_id,
                handler=handler.name,
                seq=seq,
                key=event.key,
                status=RunStatus.SUCCEEDED,
                blocking=False,
            )
            await runs.add(session, [run], now)


def _handler() -> Handler:
    found = declared(tally)
    assert found is not None
    return replace(found, plugin="bench")


async def _prepare(kafka_url: str, database_url: str, count: int) -> tuple[Database, Broker, str]:
    database, broker = Database(database_url), open_broker(kafka_url)
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    await schema.upgrade(database)
    async with database.engine.begin() as connection:
        await connection.run_sync(lambda sync: BenchTally.__table__.create(sync))
    await broker.start()
    await broker.ensure_topics([TopicConfig(name=topic, partitions=6, retention_s=3600, max_record_bytes=1 << 20)])
    await broker.publish_many(topic, _messages(count), 60)
    return database, broker, topic


def _messages(count: int) -> Sequence[Message]:
    found = []
    for number in range(count):
        order: dict[str, Any] = {"id": f"ord_{number}", "order_id": f"order-{number}", "status": "PAID"}
        raw = orjson.dumps({"id": f"evt_{number}", "type": "order.paid", "data": {"object": order}})
        event = build_event(
            raw,
            Locators(),
            application="default",
            trust=Trust.SIGNED,
            source=Source.WEBHOOK,
            received_at=datetime.now(UTC),
        )
        packed = pack_event(event)
        found.append(Message(key=packed.key, value=packed.value, headers=packed.headers))
    return found


async def _tallied(database: Database, wanted: int) -> bool:
    async with database.reading() as session:
        return bool((await session.execute(text("SELECT count(*) FROM bench_tally"))).scalar_one() >= wanted)


async def _close(database: Database, broker: Broker) -> None:
    await broker.stop()
    await database.stop()
