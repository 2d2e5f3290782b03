"""On Apache Kafka: a record larger than the topic takes is published with the fields that decide, by refresh and by
reconcile; its neighbours as they are. The handlers go by it as by any other."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from consumer.broker import KafkaBroker, TopicConfig
from consumer.events import Event
from consumer.ledger import Database
from consumer.sync.publisher import EventPublisher
from consumer.sync.reconcile.stage import Reconcile
from consumer.sync.refresh.stage import Refresh
from consumer.wire import unpack_event
from handlers.access.tables import SUBSCRIPTIONS
from handlers.fulfilment.tables import ORDERS
from tests.support.handling.projections import Projections
from tests.sync.conftest import LOCATORS, World, read_all
from tests.sync.reconciling import baselined, lists
from tests.sync.refreshing import ask, pending
from tests.sync.service import Json

MAX_BYTES = 1024 * 1024
HUGE = random.Random(1).randbytes(MAX_BYTES).hex()
ORDER = {"id": "ord_1", "order_id": "A1", "status": "PAID", "amount": "10.00", "order": {"customer_reference": "c1"}}
SUBSCRIPTION = {"id": "sub_1", "status": "ACTIVE", "customer_reference": "c1", "price_id": "price_1"}
NEIGHBOUR = {"id": "ord_2", "order_id": "A2", "status": "PAID", "amount": "7.00", "note": "x"}
LARGE: list[Json] = [{"note": HUGE, **ORDER}, {"note": HUGE, **SUBSCRIPTION}]

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def sqlite_ledger(database: Database) -> Database:
    """Of each kind."""
    return database


@dataclass
class Topic:
    """A topic of this test's own, with the bound of the default settings' order of size."""

    broker: KafkaBroker
    name: str

    @property
    def publisher(self) -> EventPublisher:
        return EventPublisher(self.broker, self.name)

    async def published(self) -> list[Event]:
        """All that lies there."""
        records = await read_all(self.broker, self.name)  # type: ignore[arg-type]  # it asks what any broker has
        return [unpack_event(one.key, one.value, one.headers, LOCATORS) for one in records]


@pytest.fixture
async def topic(kafka_url: str) -> AsyncIterator[Topic]:
    broker = KafkaBroker([kafka_url.removeprefix("kafka://")])
    await broker.start()
    name = f"large-{uuid.uuid4().hex[:12]}"
    await broker.ensure_topics([TopicConfig(name=name, partitions=3, retention_s=None, max_record_bytes=MAX_BYTES)])
    yield Topic(broker, name)
    await broker.stop()


async def by_refresh(world: World, topic: Topic) -> None:
    """Handlers asked for all three."""
    records = {"/v1/orders/lookup?A1": LARGE[0], "/v1/orders/lookup?A2": NEIGHBOUR, "/v1/subscriptions/sub_1": LARGE[1]}
    world.service.records |= records
    await ask(world, "order", "A1")
    await ask(world, "order", "A2")
    await ask(world, "subscription", "sub_1")
    assert await Refresh(world.app, topic.publisher).once() == 3
    assert await pending(world) == []


async def by_reconcile(world: World, topic: Topic) -> None:
    """Nobody asked; they are listed."""
    await baselined(world)
    lists(world, orders=[LARGE[0], NEIGHBOUR], subscriptions=[LARGE[1]])
    report = await Reconcile(world.app, topic.publisher).once()
    assert (report.made, report.unplaced) == (3, 0)
    assert (await Reconcile(world.app, topic.publisher).once()).published == 0, "it is remembered as it was read"


# case: U1, B18, F18
@pytest.mark.parametrize("tell", [by_refresh, by_reconcile])
async def test_what_is_too_large_for_kafka_is_told_by_what_decides(world: World, topic: Topic, tell: Any) -> None:
    await tell(world, topic)
    told = await topic.published()
    found = {event.key: (event.find("/data/reduced"), event.find("/data/record")) for event in told}
    assert found == {
        "order:A1": (True, ORDER),
        "order:A2": (None, NEIGHBOUR),
        "subscription:sub_1": (True, SUBSCRIPTION),
    }
    handlers = Projections(
        world.database,
        "handlers.fulfilment.handler",
        "handlers.access.handler",
        options={"handlers.fulfilment.handler": {"matching": "off"}, "handlers.access.handler": {}},
    )
    await handlers.feed(*told)
    assert {row["order_id"]: row["amount"] for row in await handlers.rows(ORDERS)} == {"A1": "10.00", "A2": "7.00"}
    assert len(handlers.of_type("fulfilment.requested")) == 2
    [subscription] = await handlers.rows(SUBSCRIPTIONS)
    assert (subscription["status"], subscription["customer"]) == ("ACTIVE", "c1")
