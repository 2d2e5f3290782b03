"""Rebuild: projections derived again from the archived events are the same, and nothing new goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, delete, select

from consumer.ledger import Database, schema
from consumer.ledger.events import to_event
from consumer.ledger.tables import EventRow
from handlers.access import tables as access
from handlers.fulfilment import tables as fulfilment
from tests.access.history import Service, denials, reconcile, services, webhooks
from tests.support.projections import OUTBOX, START, Projections, observed, own, said, unreadable

MODULES = ("handlers.fulfilment.handler", "handlers.access.handler")
EVENTS: Table = EventRow.__table__
OURS = [table for module in (fulfilment, access) for table in vars(module).values() if isinstance(table, Table)]


async def contents(world: Projections, application: str) -> dict[str, list[dict[str, Any]]]:
    return {table.name: await world.rows(table, application=application) for table in OURS}


async def rebuilt(world: Projections, application: str) -> None:
    """Drop the rows, and run every archived event through the handlers again, in the order of arrival."""
    async with world.database.transaction() as session:
        for table in OURS:
            await session.execute(delete(table).where(table.c.application == application))
    async with world.database.reading() as session:
        wanted = select(EventRow).where(EVENTS.c.application == application).order_by(EVENTS.c.seq)
        archived = [to_event(row) for row in (await session.execute(wanted)).scalars()]
    world.now = world.now + timedelta(days=90)  # a rebuild happens later, and must not depend on when
    for event in archived:
        await world.force(event)


async def same_after_rebuild(world: Projections, application: str) -> None:
    before = await contents(world, application)
    sent = await world.rows(OUTBOX, application=application)
    await rebuilt(world, application)
    after = await contents(world, application)
    for name, rows in before.items():
        assert after[name] == rows, name
    assert await world.rows(OUTBOX, application=application) == sent, "nothing new goes out"


async def test_a_full_life_rebuilds_to_the_same_rows(sqlite_ledger: Database) -> None:
    # case: G9
    world = Projections(sqlite_ledger, *MODULES)
    await world.feed(
        own("checkout.registered", "order:A1", {"session_id": "s1", "order_id": "A1", "expected_amount": "10"}),
        said("order.paid", "evt_1", order_id="A1", amount="9"),
        own("fulfilment.released", "order:A1", {"by": "op"}),
        said("checkout.session.completed", "evt_2", id="s1", order_id="A1"),
        observed("payment:p1", 1, {"id": "p1", "status": "SUCCEEDED", "order_id": "A1"}),
        observed("payment:p2", 2, {"id": "p2", "status": "SUCCEEDED", "order_id": "A1"}),
        said("subscription.created", "evt_3", id="S1", customer_reference="c"),
        said("order.paid", "evt_4", order_id="A2"),
        said("order.paid", "evt_5", order_id="A3"),
        unreadable("order:A3", 4),
        said("subscription.created", "evt_6", id="S2", customer_reference="d"),
        unreadable("subscription:S2", 5),
    )
    await world.pass_time(minutes=1)
    await world.feed(unreadable("order:A2", 6, at=world.now))
    await world.feed(own("checkout.registered", "order:A3", {"session_id": "s3", "order_id": "A3"}, at=world.now))
    world_read = {"status": "PAST_DUE", "customer_reference": "c"}
    await world.feed(observed("subscription:S1", 3, world_read, at=world.now))
    await world.feed(own("access.held", "customer:c", {"by": "op"}, at=world.now, id_="drv_hold"))
    await world.pass_time(days=3)
    await world.feed(own("access.hold_lifted", "customer:c", {"id": "drv_hold"}, at=world.now))
    await world.pass_time(days=30)
    assert [one.type for one in world.of_type("access.granted", "access.revoked")] == [
        "access.granted",
        "access.revoked",
        "access.granted",
        "access.revoked",
    ]
    assert len(world.of_type("fulfilment.requested")) == 3
    await same_after_rebuild(world, "default")


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def ledger(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder: Path = tmp_path_factory.mktemp("rebuild")
    database = Database(f"sqlite+aiosqlite:///{folder}/ledger.db")
    runner.run(schema.upgrade(database))
    yield database
    runner.run(database.stop())


_names = count()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(service=services(), data=st.data())
def test_any_history_rebuilds_to_the_same_rows(
    runner: asyncio.Runner, ledger: Database, service: Service, data: Any
) -> None:
    # case: G9
    application = f"app{next(_names)}"
    happened = webhooks(service, application, thin=data.draw(st.booleans()))
    happened += data.draw(st.lists(st.sampled_from(denials(service, application)), max_size=2, unique=True))
    order = data.draw(st.permutations(happened + data.draw(st.lists(st.sampled_from(happened), max_size=3))))

    async def run() -> None:
        world = Projections(ledger, *MODULES, now=service.now, application=application)
        await world.feed_together(order)
        await world.relay()
        await world.feed_together(reconcile(service, application))
        await world.pass_time(days=20)
        assert world.now > START
        await same_after_rebuild(world, application)

    runner.run(run())
