"""What the worker has room for is claimed by the transaction that adds it, and begun when that is committed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker import Broker
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.handling import handlers, runs
from consumer.plugin import Context, Event, handles
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.ingest import claiming, ingest
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many runs were claimed by a look, and as they were added."""
    found = Counter[str]()
    claim, claim_new = runs.claim, runs.claim_new

    async def looked(session: AsyncSession, **options: Any) -> Any:
        done = await claim(session, **options)
        found["by a look"] += len(done)
        return done

    async def added(session: AsyncSession, runs: Any, **options: Any) -> Any:
        done = await claim_new(session, runs, **options)
        found["as they came"] += len(done)
        return done

    monkeypatch.setattr(runs, "claim", looked)
    monkeypatch.setattr(runs, "claim_new", added)
    return found


async def warmed_up(shop: Workshop) -> None:
    """A first event is done, so nothing older waits."""
    await shop.publish(order_paid("first"))
    await eventually(lambda: shop.all_succeeded(len(shop.functions)))


async def test_there_is_no_look_for_it(database: Database, broker: Broker, claims: Counter[str]) -> None:
    calls = Counter[str]()

    @handles("order.paid")
    async def ship(event: Event, ctx: Context) -> None:
        calls[event.id] += 1

    shop = Workshop(database, broker, [ship])
    async with shop.working():
        await warmed_up(shop)
        claims.clear()
        await shop.publish(*[order_paid(number) for number in range(10)])
        await eventually(lambda: shop.all_succeeded(11))
    assert (claims["by a look"], claims["as they came"]) == (0, 10)
    assert set(calls.values()) == {1}


async def test_older_ones_go_first(database: Database, broker: Broker, claims: Counter[str]) -> None:
    gate, begun = asyncio.Event(), list[str]()

    @handles("order.paid", concurrency=1)
    async def ship(event: Event, ctx: Context) -> None:
        begun.append(event.id)
        await gate.wait()

    shop = Workshop(database, broker, [ship])
    gate.set()
    async with shop.working():
        await warmed_up(shop)
        gate.clear()
        begun.clear()
        claims.clear()
        for number in range(5):  # one has room, and then each comes while older ones wait
            await shop.publish(order_paid(number))
            await eventually(lambda: shop.count("ship", "retrying", number + 1))  # noqa: B023 - awaited
        gate.set()
        await eventually(lambda: shop.all_succeeded(6))
    assert begun == [f"evt_{number}" for number in range(5)]
    assert claims["as they came"] == 1


async def test_a_pause_that_this_worker_has_not_heard_of_yet(database: Database, broker: Broker) -> None:
    begun = Counter[str]()

    @handles("order.paid", name="test:ship")
    async def ship(event: Event, ctx: Context) -> None:
        begun[event.id] += 1

    shop = Workshop(database, broker, [ship])
    async with shop.working():
        await warmed_up(shop)
        async with database.transaction() as session:
            await handlers.pause(session, "test:ship", by="test", reason="looks odd", now=datetime.now(UTC))
        await shop.publish(order_paid(1))
        await eventually(lambda: shop.count("ship", "retrying", 1))
        assert begun["evt_1"] == 0
        async with database.transaction() as session:
            await handlers.resume(session, "test:ship")
        await eventually(lambda: shop.all_succeeded(2))
    assert begun["evt_1"] == 1


# case: H1, O2
async def test_a_commit_that_was_not_acknowledged_is_done_once_when_the_claim_ends(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, lost_in = Counter[str](), list[AsyncSession]()
    claim, transaction = claiming.Claiming.claim, database.transaction

    @handles("order.paid")
    async def ship(event: Event, ctx: Context) -> None:
        begun[event.id] += 1

    async def noted(self: claiming.Claiming, session: AsyncSession, *given: Any) -> Any:
        claimed = await claim(self, session, *given)
        if not lost_in and any(one.event.id == "evt_1" for one in claimed):
            lost_in.append(session)
        return claimed

    @asynccontextmanager
    async def unacknowledged() -> AsyncIterator[AsyncSession]:
        async with transaction() as session:
            yield session
        if session in lost_in:
            raise LedgerUnavailable(reason="the connection was lost")

    monkeypatch.setattr(claiming, "CLAIM_LEASE_S", 2.0)
    monkeypatch.setattr(claiming.Claiming, "claim", noted)
    monkeypatch.setattr(database, "transaction", unacknowledged)
    shop = Workshop(database, broker, [ship])
    async with shop.working():
        await warmed_up(shop)
        await shop.publish(order_paid(1))
        await eventually(lambda: shop.all_succeeded(2), within_s=30)
    assert lost_in, "the answer of that commit was lost"
    assert begun["evt_1"] == 1


async def test_what_is_taken_singly_is_left_to_a_look(
    database: Database, broker: Broker, claims: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later event of the batch may still keep the ledger from taking it: nobody would hand over the ones before."""

    @handles("order.paid", transactional=True)
    async def note(event: Event, ctx: Context) -> None:
        """Nothing."""

    @handles("order.paid")
    async def ship(event: Event, ctx: Context) -> None:
        """Nothing."""

    store = ingest.Ingest._store

    async def broken(self: ingest.Ingest, arrived: Any, refused: Any, way: ingest.Way, *given: Any, **more: Any) -> Any:
        if len(arrived) > 1:
            raise ValueError("not together")
        return await store(self, arrived, refused, way, *given, **more)

    shop = Workshop(database, broker, [note, ship])
    async with shop.working():
        await warmed_up(shop)
        monkeypatch.setattr(ingest.Ingest, "_store", broken)
        claims.clear()
        await shop.publish(*[order_paid(number, "order-x") for number in range(3)])
        await eventually(lambda: shop.count("ship", "succeeded", 4))
    assert (claims["by a look"], claims["as they came"]) == (3, 0)


async def test_a_worker_that_stops_claims_nothing_more(database: Database, broker: Broker) -> None:
    @handles("order.paid", name="test:ship")
    async def ship(event: Event, ctx: Context) -> None:
        """Nothing."""

    rooms = list[int]()
    drain = Dispatcher._drain

    async def asked(self: Dispatcher, drain_s: float) -> None:
        rooms.append(self.room("test:ship", 1))
        await drain(self, drain_s)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Dispatcher, "_drain", asked)
        shop = Workshop(database, broker, [ship])
        async with shop.working():
            await warmed_up(shop)
    assert rooms == [0]
