"""Any loss, duplication and order of the sandbox's webhooks, on two workers, then one reconcile: its own state, each
effect once. In every shape of event and under every assumption the document leaves open."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.engine import schema
from handlers.access.tables import ENTITLEMENTS, SUBSCRIPTIONS
from handlers.fulfilment.tables import FINDINGS, ORDERS
from tests.promises.lives import CUSTOMERS, Life, lives
from tests.support.handling.projections import OUTBOX, Projections

MODULES = ("handlers.fulfilment.handler", "handlers.access.handler")
HISTORIES = int(os.environ.get("CONSUMER_TEST_HISTORIES", "200"))  # `make chaos` asks for thousands


class World:
    """One ledger for many lives: each is an application of its own, on two workers."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.database = Database(url)
        self.runner.run(schema.upgrade(self.database))
        self.names = (f"app{number}" for number in count())

    def close(self) -> None:
        self.runner.run(self.database.stop())
        self.runner.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('lives')}/ledger.db")
    yield made
    made.close()


def arriving(data: Any, life: Life, application: str) -> list[Event]:
    """What reaches us: any part of the webhooks, any number of times, some reads of the way, some answers that there is
    no such thing yet, in any order."""
    webhooks = life.webhooks(application)
    kept = data.draw(st.lists(st.sampled_from(webhooks), max_size=2 * len(webhooks)), label="kept") if webhooks else []
    readings = life.readings(application)
    reads = data.draw(st.lists(st.sampled_from(readings), max_size=6), label="reads") if readings else []
    denials = life.denials(application)
    denied = data.draw(st.lists(st.sampled_from(denials), max_size=3), label="denied") if denials else []
    return list(data.draw(st.permutations(kept + reads + denied), label="order"))


async def experience(world: World, life: Life, application: str, events: list[Event], *, waits: bool) -> Projections:
    """Two workers share what arrives; then one reconcile, and time for what settles."""
    two = [Projections(world.database, *MODULES, now=life.now, application=application) for _ in range(2)]
    await asyncio.gather(two[0].feed(*events[::2]), two[1].feed(*events[1::2]))
    await (two[0].pass_time(seconds=5) if waits else two[0].relay())  # some orders go out unread, some are held
    await two[1].feed(*life.reconcile(application))
    await two[0].relay()
    before = await effects(two[0], application)
    await check_access_was_kept(life, before)
    await two[0].pass_time(minutes=15)
    return two[0]


async def effects(shop: Projections, application: str) -> list[tuple[str, str]]:
    """(type, key) of every effect that went out, in order."""
    wanted = ("fulfilment.requested", "access.granted", "access.revoked")
    rows = await shop.rows(OUTBOX, application=application)
    return [(row["type"], row["key"]) for row in rows if row["type"] in wanted]


async def check_access_was_kept(life: Life, sent: list[tuple[str, str]]) -> None:
    """One whose subscriptions followed each other without a gap was never told otherwise (cases A25, A27)."""
    for customer in life.with_access:
        mine = sorted(
            (one for one in life.subscriptions.values() if one.customer_reference == customer), key=lambda one: one.seq
        )
        gapless = all(old.ended_at is None or old.ended_at >= new.started_at for old, new in pairwise(mine))
        if gapless and mine[-1].ended_at is None:
            assert [type_ for type_, key in sent if key == f"customer:{customer}"] == ["access.granted"]


async def check(shop: Projections, life: Life, application: str) -> None:
    rows = {row["order_id"]: row for row in await shop.rows(ORDERS, application=application)}
    assert set(rows) == life.every_order, "no order was missed, and none invented"
    assert {id_ for id_, row in rows.items() if row["paid_at"] is not None} == life.paid_orders
    sent = await effects(shop, application)
    assert sorted(key for type_, key in sent if type_ == "fulfilment.requested") == sorted(
        f"order:{id_}" for id_ in life.paid_orders
    )
    await check_money(shop, life, application)
    subs = {row["subscription_id"]: row for row in await shop.rows(SUBSCRIPTIONS, application=application)}
    assert set(subs) == set(life.subscriptions)
    for id_, truth in life.subscriptions.items():
        row = subs[id_]
        assert (row["status"], row["end_reason"]) == (truth.status.value, truth.end_reason)
        assert (row["customer"], row["price_id"]) == (truth.customer_reference, truth.price_id)
        assert row["merchant_cancel_requested"] == truth.merchant_cancel_requested
    allowed = await shop.rows(ENTITLEMENTS, application=application, allowed=True)
    assert {row["customer"] for row in allowed} == life.with_access
    for customer in CUSTOMERS:
        told = [type_ for type_, key in sent if key == f"customer:{customer}"]
        assert told == [("access.granted", "access.revoked")[n % 2] for n in range(len(told))]
        assert len(told) % 2 == (customer in life.with_access)


async def check_money(shop: Projections, life: Life, application: str) -> None:
    """Double and orphan money is shown, all of it and nothing else (cases F28, F29)."""
    open_ = {
        (row["kind"], row["subject"])
        for row in await shop.rows(FINDINGS, application=application)
        if row["closed_at"] is None and row["kind"] in ("orphan_payment", "duplicate_payment")
    }
    orphans = {("orphan_payment", id_) for id_ in life.succeeded if id_ not in life.paid_orders}
    doubles = {("duplicate_payment", id_) for id_, number in life.succeeded.items() if number > 1}
    assert open_ == orphans | doubles


def examine(world: World, life: Life, data: Any) -> None:
    application = next(world.names)
    events = arriving(data, life, application)
    waits = data.draw(st.booleans(), label="waits")

    async def run() -> None:
        shop = await experience(world, life, application, events, waits=waits)
        await check(shop, life, application)

    world.runner.run(run())


@settings(max_examples=40, deadline=None)
@given(life=lives(), data=st.data())
def test_on_sqlite(world: World, life: Life, data: Any) -> None:
    # case: G1, G2, G3, G4, G6, G7, G10, G11, B18, B19, B20
    examine(world, life, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=HISTORIES, deadline=None)
@given(life=lives(), data=st.data())
def test_on_sqlite_for_long(world: World, life: Life, data: Any) -> None:
    # case: G1, G2, G3, G4, G6, G7, G10, G11
    examine(world, life, data)


@pytest.fixture(scope="module")
def postgres_world(postgres_base: str) -> Iterator[World]:
    from tests.support.postgres import create_database

    made = World(create_database(postgres_base))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.postgres
@settings(max_examples=40, deadline=None)
@given(life=lives(), data=st.data())
def test_on_postgresql(postgres_world: World, life: Life, data: Any) -> None:
    # case: G1, G2, G3, G4, G6, G7, G10, G11
    examine(postgres_world, life, data)
