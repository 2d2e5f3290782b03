"""A broker, a ledger, a client and a service for the sync stages; no real time passes where a clock is asked."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from consumer.broker import EmbeddedBroker, Message, Record, TopicConfig
from consumer.events import Delivery, Event, Locators, Source
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.reading import heard, sync_state
from consumer.payments import Attempt, Credentials, PaymentsClient
from consumer.reason import Reason
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sync.api import ApplicationApi
from consumer.sync.application import Application
from consumer.sync.publisher import EventPublisher
from consumer.sync.settlement import Settlement
from consumer.telemetry.metrics import Metrics
from consumer.wire import pack_delivery, unpack_event
from tests.sync.service import ScriptedService, scripted_service

DELIVERIES, EVENTS = "payments.deliveries", "payments.events"
LOCATORS = Locators()


class SteppedClock:
    """A clock whose sleepers do not wait: time jumps to where they wanted to be."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self._elapsed_s = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._elapsed_s += seconds


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    found = EmbeddedBroker(tmp_path / "log.db")
    await found.start()
    topics = (DELIVERIES, EVENTS)
    await found.ensure_topics(
        TopicConfig(name=name, partitions=4, retention_s=None, max_record_bytes=2**21) for name in topics
    )
    yield found
    await found.stop()


@pytest.fixture
async def service() -> AsyncIterator[ScriptedService]:
    async with scripted_service() as found:
        yield found


@pytest.fixture
async def api(service: ScriptedService, clock: SteppedClock) -> AsyncIterator[ApplicationApi]:
    credentials = Credentials("svc_app_test", ["svc_sk_live_test"])
    async with PaymentsClient(service.address, credentials, clock=clock) as client:
        yield ApplicationApi(application="default", client=client)


def counted_by(metrics: Metrics, name: str, *labels: str) -> float:
    """One number of a declared metric, by its labels; 0 when nothing was counted yet."""
    found: float = getattr(metrics, name).labels(*labels)._value.get()
    return found


@dataclass
class World:
    """What a sync stage works between, with the shortcuts that the tests share."""

    broker: EmbeddedBroker
    database: Database
    service: ScriptedService
    api: ApplicationApi
    clock: SteppedClock
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def app(self) -> Application:
        """What a stage that leads works with."""
        return Application(
            api=self.api, database=self.database, clock=self.clock, token=lambda: 1, metrics=self.metrics
        )

    @property
    def publisher(self) -> EventPublisher:
        return EventPublisher(self.broker, EVENTS)

    def settlement(self, publisher: EventPublisher | None = None) -> Settlement:
        """Where hints are settled; the stages that are to know of each other share one."""
        return Settlement(self.app, publisher or self.publisher)

    async def kept(self, walk: str) -> dict[str, Any] | None:
        """What the ledger keeps of a stage under this name, as it is stored."""
        async with self.database.reading() as session:
            return await sync_state.load(session, "default", walk)

    async def deliver(self, *deliveries: Delivery) -> None:
        """Publish deliveries as receive does."""
        packed = [pack_delivery(one, LOCATORS) for one in deliveries]
        messages = [Message(key=one.key, value=one.value, headers=one.headers) for one in packed]
        await self.broker.publish_many(DELIVERIES, messages)

    async def published(self, topic: str = EVENTS) -> list[Event]:
        """Everything on topic `events` so far, in the order of arrival within each partition."""
        return [unpack_event(one.key, one.value, one.headers, LOCATORS) for one in await read_all(self.broker, topic)]

    async def work(self) -> None:
        """Record what is on topic `events`, as the workers do."""
        published = await self.published()
        async with self.database.transaction() as session:
            new = await events.record(session, published, self.clock.now())
            late = [one for one in published if one.source is Source.WEBHOOK and (one.application, one.id) not in new]
            if late:
                await heard.note(session, {"default": max(one.received_at for one in late)})


async def read_all(broker: EmbeddedBroker, topic: str) -> Sequence[Record]:
    subscription = broker.subscribe((topic,), f"test-{uuid.uuid4()}")
    await subscription.start()
    found: list[Record] = []
    try:
        while not subscription.assignment() or any(one.records for one in (await subscription.lag()).values()):
            found += (more := await subscription.poll(5000, 0.1))
            await subscription.commit({one.partition: one.offset + 1 for one in more})
    finally:
        await subscription.stop()
    return found


@pytest.fixture
def world(
    broker: EmbeddedBroker,
    sqlite_ledger: Database,
    service: ScriptedService,
    api: ApplicationApi,
    clock: SteppedClock,
) -> World:
    return World(broker=broker, database=sqlite_ledger, service=service, api=api, clock=clock)


def delivery(raw: bytes, number: int = 1, *, event_id: str | None = None, problem: Reason | None = None) -> Delivery:
    """A delivery as receive makes it."""
    return Delivery(
        application="default",
        id=f"dlv_{number}",
        raw=raw,
        received_at=datetime(2026, 1, 1, 0, 0, number % 60, tzinfo=UTC),
        headers={"user-agent": "service/1"},
        event_id=event_id,
        problem=problem,
        traceparent="00-11111111111111111111111111111111-2222222222222222-01",
    )


SECRETS = ("svc_app_sandbox", "svc_sk_live_sandbox")


@dataclass
class Simulated:
    """The simulator in this process, and a client of it whose waits do not take real time."""

    sandbox: Sandbox
    api: ApplicationApi
    clock: SteppedClock
    attempts: list[Attempt] = field(default_factory=list)

    def emit(self, count: int, kind: str = "order.paid", *, every_s: float = 1.0) -> list[str]:
        """Events that no webhook announces; each `every_s` later than the one before. Returns their ids."""
        events = self.sandbox.engine.events
        found = []
        for number in range(count):
            self.sandbox.clock.advance_to(self.sandbox.clock.now() + timedelta(seconds=every_s))
            document = {"id": f"ord_{kind}_{number}", "order_id": f"A-{number}", "status": "PAID"}
            found.append(events.made_up(kind, "svc_app_sandbox", document, {}).id)
        return found


@asynccontextmanager
async def simulated(clock: SteppedClock, **assumptions: object) -> AsyncIterator[Simulated]:
    config = SandboxConfig(driven=True, start=clock.now(), limits=False, assumptions=assumptions)
    async with Sandbox(config) as sandbox:
        credentials = Credentials(SECRETS[0], [SECRETS[1]])
        attempts: list[Attempt] = []
        async with PaymentsClient(sandbox.base_url, credentials, clock=clock, on_attempt=attempts.append) as client:
            api = ApplicationApi(application="default", client=client)
            yield Simulated(sandbox=sandbox, api=api, clock=clock, attempts=attempts)


def pass_time(world: World, service_side: Simulated, **span: float) -> None:
    """Both clocks go on to the same moment."""
    now = max(service_side.sandbox.clock.now(), world.clock.now()) + timedelta(**span)
    service_side.sandbox.clock.advance_to(now)
    world.clock.advance((now - world.clock.now()).total_seconds())


@pytest.fixture
async def service_side(clock: SteppedClock) -> AsyncIterator[Simulated]:
    """The simulator; a module whose world reads it sets `world.api` to its API."""
    async with simulated(clock) as found:
        yield found
