"""2,000 odd records, as listed events, as answers of the API and as webhooks in both authenticities: each ends in a
named state, every order that the service calls PAID is requested once, and no neighbour waits. PostgreSQL gets a third
of them, odd in the same ways."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from consumer.broker import EmbeddedBroker, TopicConfig
from consumer.events import Authenticity, Event, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.reading import quarantine
from consumer.payments import Credentials, PaymentsClient
from consumer.receive.decide import decide
from consumer.sync.api import ApplicationApi
from consumer.wire import unpack_delivery, unpack_event
from handlers.fulfilment.tables import ORDERS
from tests.hostile.corpus import AT, OddService, as_event, corpus
from tests.hostile.every_object.household import ENDPOINTS, signed
from tests.hostile.texts import written
from tests.support.handling.projections import Projections
from tests.sync.backfilling import backfill
from tests.sync.conftest import DELIVERIES, EVENTS, LOCATORS, SteppedClock, World
from tests.sync.reconciling import baselined, reconcile

THIRD_FROM = 1000
TRACE = "00-11111111111111111111111111111111-2222222222222222-01"


@pytest.fixture
async def world(tmp_path: Path, database: Database, orders: list[dict[str, Any]]) -> AsyncIterator[World]:
    clock = SteppedClock()
    broker = EmbeddedBroker(tmp_path / "log.db")
    await broker.start()
    await broker.ensure_topics(
        TopicConfig(name=name, partitions=4, retention_s=None, max_record_bytes=2**21) for name in (EVENTS, DELIVERIES)
    )
    app = web.Application()
    app.router.add_get("/{path:.*}", OddService(orders).answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with PaymentsClient(address, Credentials("svc_app_test", ["svc_sk_live_test"]), clock=clock) as client:
        api = ApplicationApi(application="default", client=client)
        yield World(broker=broker, database=database, service=None, api=api, clock=clock)  # type: ignore[arg-type]  # no scripted service here
    await runner.cleanup()
    await broker.stop()


@pytest.fixture(params=[100, pytest.param(2000, marks=pytest.mark.slow)])
def orders(request: pytest.FixtureRequest, database: Database) -> list[dict[str, Any]]:
    made = corpus(request.param)
    return made if database.dialect == "sqlite" or len(made) < THIRD_FROM else made[::3]


async def requested(database: Database, told: list[Event], orders: list[dict[str, Any]]) -> None:
    """Every order was asked to be fulfilled, once."""
    projections = Projections(database, "handlers.fulfilment.handler", options={"matching": "off"})
    for start in range(0, len(told), 200):
        await projections.feed_together(told[start : start + 200])
    assert len(projections.of_type("fulfilment.requested")) == len(orders)
    rows = await projections.rows(ORDERS)
    assert {row["order_id"] for row in rows if row["requested_at"]} == {order["order_id"] for order in orders}


async def test_as_listed_events(world: World, orders: list[dict[str, Any]]) -> None:
    # case: U1, F1, B1
    report = await backfill(world).once()
    assert (report.published, report.strange) == (len(orders), 0)
    await requested(world.database, await world.published(), orders)


async def test_as_answers_of_the_api(world: World, orders: list[dict[str, Any]]) -> None:
    # case: U1, F18, B18
    await baselined(world)
    report = await reconcile(world).once(max_changes=len(orders))
    assert (report.made, report.unplaced) == (len(orders), 0)
    await requested(world.database, await world.published(), orders)


@pytest.mark.parametrize("authenticity", [Authenticity.API, Authenticity.SIGNATURE])
async def test_as_webhooks(database: Database, orders: list[dict[str, Any]], authenticity: Authenticity) -> None:
    # case: I10, I17, F1
    """Signed bodies are facts; the others become hints, or are kept."""
    told: list[Event] = []
    kept = 0
    for number, order in enumerate(orders):
        raw = written(as_event(number, order))
        topic, message, answer, problem = decide(
            ENDPOINTS[authenticity], raw, signed(f"msg_{number}", raw, AT), AT, TRACE
        )
        if topic == "events":
            told.append(unpack_event(message.key, message.value, message.headers, LOCATORS))
            continue
        delivery = unpack_delivery(message.key, message.value, message.headers)
        async with database.transaction() as session:
            if problem is not None:
                kept += 1
                assert answer.status == 400
                await quarantine.put(session, [(delivery, problem)], AT)
        assert problem is not None or (delivery.event_id, delivery.raw) == (f"evt_{number}", raw)
    # What is refused (a body nested a thousand levels deep) is in quarantine, and comes by the list.
    assert kept <= len(orders) // 20
    missing = [n for n in range(len(orders)) if f"evt_{n}" not in {event.id for event in told}]
    for number in missing:
        raw = written(as_event(number, orders[number]))
        told.append(
            build_event(raw, LOCATORS, application="default", trust=Trust.READ, source=Source.BACKFILL, received_at=AT)
        )
    await requested(database, told, orders)
