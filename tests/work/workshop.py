"""A workshop: real workers on a real log and a real ledger, with handlers of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import select

from consumer.broker import Broker, EmbeddedBroker, Message, TopicConfig
from consumer.clock import Clock, SystemClock
from consumer.events import Event, Locators, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.tables import RunRow
from consumer.plugin import declared
from consumer.telemetry.loop_watch import LoopWatch
from consumer.telemetry.metrics import Metrics
from consumer.telemetry.traces import Tracing
from consumer.wire import pack_event
from consumer.work.build import build_worker
from consumer.work.execution.contexts import Contexts
from consumer.work.observer import Observer
from consumer.work.registry import Registry
from consumer.work.worker import Worker, WorkerConfig

TOPIC = "payments.events"
AT = datetime(2026, 1, 1, tzinfo=UTC)


def order_paid(number: int | str, order: str | None = None, *, application: str = "default") -> Event:
    """An `order.paid` as the service would send it."""
    return service_event(f"evt_{number}", "order.paid", order or f"order-{number}", application=application)


def service_event(event_id: str, event_type: str, order: str, *, application: str = "default") -> Event:
    """A signed webhook of any type about an order."""
    raw = orjson.dumps({"id": event_id, "type": event_type, "data": {"object": {"order_id": order}}})
    return build_event(
        raw, Locators(), application=application, trust=Trust.SIGNED, source=Source.WEBHOOK, received_at=AT
    )


def message(event: Event) -> Message:
    """The event as a stage would publish it."""
    packed = pack_event(event)
    return Message(key=packed.key, value=packed.value, headers=packed.headers)


@dataclass
class Workshop:
    """What a test holds in its hands. `functions` are handlers of one plugin, `neighbours` of another."""

    database: Database
    broker: Broker
    functions: Sequence[Callable[..., Coroutine[Any, Any, None]]]
    clock: Clock = field(default_factory=SystemClock)
    config: WorkerConfig = field(default_factory=lambda: WorkerConfig(topic=TOPIC, drain_s=5))
    metrics: Metrics = field(default_factory=Metrics)
    applications: tuple[str, ...] = ("default",)
    registry: Registry | None = None
    contexts: Contexts | None = None
    neighbours: Sequence[Callable[..., Coroutine[Any, Any, None]]] = ()
    watch: LoopWatch | None = None
    give_up: Callable[[str, str], None] | None = None

    async def publish(self, *events: Event) -> None:
        """Put events on the log, in this order."""
        await self.broker.publish_many(TOPIC, [message(event) for event in events])

    def worker(self) -> Worker:
        """A further worker process, as it were."""
        plugins = {"test": self.functions, "neighbour": self.neighbours}
        found = [(plugin, declared(one)) for plugin, functions in plugins.items() for one in functions]
        return build_worker(
            database=self.database,
            broker=self.broker,
            registry=self.registry
            or Registry([replace(handler, plugin=plugin) for plugin, handler in found if handler is not None]),
            contexts=self.contexts or Contexts(clock=self.clock),
            locators={name: Locators() for name in self.applications},
            clock=self.clock,
            observer=Observer(self.metrics, Tracing()),
            config=self.config,
            watch=self.watch,
            give_up=self.give_up,
        )

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Worker]:
        """A worker that runs for as long as the block does, and then stops cleanly."""
        worker, stop = self.worker(), asyncio.Event()
        task = asyncio.create_task(worker.run(stop))
        try:
            yield worker
        finally:
            stop.set()
            async with asyncio.timeout(30):
                await task

    async def runs(self, handler: str | None = None) -> list[RunRow]:
        """The runs in the ledger, by arrival."""
        statement = select(RunRow).order_by(RunRow.__table__.c.seq)
        async with self.database.reading() as session:
            rows = (await session.execute(statement)).scalars().all()
        return [row for row in rows if handler is None or row.handler.endswith(handler)]

    async def count(self, handler: str, status: str, wanted: int) -> bool:
        """Whether so many runs of the handler stand like this."""
        return (await self.statuses(handler)).count(status) == wanted

    async def all_succeeded(self, wanted: int) -> bool:
        """Whether there are so many runs and all of them succeeded."""
        return await self.statuses() == ["succeeded"] * wanted

    def figure(self, metric: str, *, handler: str) -> float:
        """A metric of the handler whose name ends so; 0 when there is none."""
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == metric and sample.labels.get("handler", "").endswith(handler):
                    return sample.value
        return 0.0

    async def statuses(self, handler: str | None = None) -> list[str]:
        """The runs' states, by arrival."""
        return [row.status for row in await self.runs(handler)]


@asynccontextmanager
async def embedded(path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A log in a file, with the workers' topic."""
    found = EmbeddedBroker(path)
    await found.start()
    try:
        await make_topics(found)
        yield found
    finally:
        await found.stop()


async def make_topics(broker: Broker, topic: str = TOPIC) -> None:
    """The topic the worker reads, and the one for dead letters."""
    await broker.ensure_topics(
        [
            TopicConfig(name=name, partitions=3, retention_s=None, max_record_bytes=1 << 20)
            for name in (topic, f"{topic}.dead")
        ]
    )
