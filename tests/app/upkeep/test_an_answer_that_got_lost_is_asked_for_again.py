"""A paid order is held until the service says that there is such an order, and a new subscription grants nothing until
it was read. Where the answer never came here, the service is asked again; where it may still come, or none was given,
nobody is asked twice."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from consumer.app.upkeep.taking import ASKED_MOST, LOST_AFTER, ask_again
from consumer.events import Trust
from consumer.ledger import Database
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.reading import observations
from consumer.ledger.reading.observation import Observation
from tests.support.handling.projections import READS, Projections, own, said

MODULE = "handlers.fulfilment.handler"
ASKED = {("order", "A1")}


@pytest.fixture
async def orders(database: Database) -> Projections:
    """A1 is paid, and held until the service is asked."""
    found = Projections(database, MODULE, options={"matching": "auto"})
    await found.feed(said("order.paid", "evt_1", trust=Trust.READ, order_id="A1"))
    assert await found.asked() == ASKED
    return found


async def time_of(database: Database) -> datetime:
    async with database.reading() as session:
        return await shared_time(session)


async def answered(orders: Projections, at: datetime, version: int = 1) -> None:
    """Read and published at this time, and ticked off; whether it has come here is another matter."""
    record = {"order_id": "A1", "status": "PAID"}
    one = Observation(application="default", kind="order", object_id="A1", version=version, read_at=at, record=record)
    async with orders.database.transaction() as session:
        await observations.keep(session, [one.observed])
    await orders.forget_reads()


async def test_an_answer_that_never_came(orders: Projections) -> None:
    # case: B28 F24
    await answered(orders, await time_of(orders.database) - LOST_AFTER - timedelta(seconds=1))
    await ask_again(orders.database)
    assert await orders.asked() == ASKED
    answer = {"version": 2, "record": {"status": "PAID"}}
    await orders.feed(own("order.observed", "order:A1", answer, id_="obs_2"))
    await orders.forget_reads()
    await ask_again(orders.database)
    assert await orders.asked() == set()
    assert len(orders.of_type("fulfilment.requested")) == 1


async def test_an_answer_that_may_be_under_way(orders: Projections) -> None:
    await answered(orders, await time_of(orders.database) - LOST_AFTER / 2)
    await ask_again(orders.database)
    assert await orders.asked() == set()


async def test_one_that_is_asked_for_is_not_asked_for_twice(orders: Projections, database: Database) -> None:
    before = await orders.rows(READS)
    await ask_again(database)
    assert await orders.rows(READS) == before


async def test_not_more_at_once_than_the_budget_can_bear(database: Database) -> None:
    orders = Projections(database, MODULE, options={"matching": "auto"})
    ids = [f"A{number}" for number in range(ASKED_MOST + 5)]
    await orders.feed_together(said("order.paid", f"evt_{one}", trust=Trust.READ, order_id=one) for one in ids)
    await orders.forget_reads()
    await ask_again(database)
    assert len(await orders.asked()) == ASKED_MOST
    await ask_again(database)
    assert len(await orders.asked()) == len(ids)


@pytest.mark.parametrize("part", [1.5, 0.5], ids=["lost", "under way"])
async def test_a_subscription_whose_first_read_never_came(database: Database, part: float) -> None:
    # case: A14 B28
    subscriptions = Projections(database, "handlers.access.handler", options={"entitlements": {"*": ["pro"]}})
    now = await time_of(database)
    created = said("subscription.created", "evt_1", trust=Trust.READ, subscription_id="sub_1", at=now - LOST_AFTER * 2)
    await subscriptions.feed(created)
    assert await subscriptions.asked() == {("subscription", "sub_1")}
    at, record = now - LOST_AFTER * part, {"id": "sub_1", "status": "ACTIVE"}
    one = Observation(
        application="default", kind="subscription", object_id="sub_1", version=1, read_at=at, record=record
    )
    async with database.transaction() as session:
        await observations.keep(session, [one.observed])
    await subscriptions.forget_reads()
    await ask_again(database)
    assert await subscriptions.asked() == ({("subscription", "sub_1")} if part > 1 else set())
    answer = {"version": 2, "read_at": now.isoformat(), "record": record}
    await subscriptions.feed(own("subscription.observed", "subscription:sub_1", answer, id_="obs_2"))
    await subscriptions.forget_reads()
    await ask_again(database)
    assert await subscriptions.asked() == set()
