"""The connection goes, or a worker is stopped, while its results are committed: nobody knows whether the ledger has
them, so they are stored again, and each attempt and each death is there once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker import Broker
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.handling import attempts
from consumer.ledger.handling.runs import Finished
from consumer.ledger.tables import DeadLetterRow
from consumer.plugin import Context, Event, handles
from consumer.work.dispatch import result_writer
from consumer.work.dispatch.result_writer import Result
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid


# case: H1, R10, O2
async def test_is_stored_again_and_is_there_once(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_in: list[AsyncSession] = []
    lost: set[tuple[str, int]] = set()
    store, transaction = result_writer.store, database.transaction

    async def noted(session: AsyncSession, results: Sequence[Result], *, worker: str, now: datetime) -> Finished:
        done = await store(session, results, worker=worker, now=now)
        if fresh := {(one.run.event_id, one.run.attempts) for one in results} - lost:
            lost.update(fresh)
            stored_in.append(session)
        return done

    @asynccontextmanager
    async def unacknowledged() -> AsyncIterator[AsyncSession]:
        async with transaction() as session:
            yield session
        if session in stored_in:
            raise LedgerUnavailable(reason="the connection was lost")

    monkeypatch.setattr(result_writer, "store", noted)
    monkeypatch.setattr(result_writer, "RETRY_S", 0.01)
    monkeypatch.setattr(database, "transaction", unacknowledged)

    @handles("order.paid", attempts=2, first_wait_s=0.01)
    async def broken(event: Event, ctx: Context) -> None:
        raise ValueError("never")

    shop = Workshop(database, broker, [broken])
    await shop.publish(order_paid(1), order_paid(2))
    async with shop.working():
        await eventually(lambda: shop.count("broken", "dead", 2), within_s=30)
        await eventually(lambda: shop.figure("consumer_work_run_seconds_count", handler="broken") == 4)
    await assert_each_is_there_once(database, {"evt_1", "evt_2"})
    assert len(lost) == 4, "each of the attempts lost its answer"


async def assert_each_is_there_once(database: Database, events: set[str]) -> None:
    async with database.reading() as session:
        letters = await session.scalars(select(DeadLetterRow.__table__.c.event_id))
        assert sorted(letters) == sorted(events)
        for event_id in events:
            kept = await attempts.of_event(session, "default", event_id)
            assert [(row.number, row.outcome) for row in kept] == [(1, "retrying"), (2, "dead")]


# case: H1, O2
async def test_a_worker_that_is_stopped_while_it_stores(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed, transaction, store = asyncio.Event(), database.transaction, result_writer.store
    stored_in: list[AsyncSession] = []

    async def noted(session: AsyncSession, results: Sequence[Result], *, worker: str, now: datetime) -> Finished:
        done = await store(session, results, worker=worker, now=now)
        if not committed.is_set():
            stored_in.append(session)
        return done

    @asynccontextmanager
    async def slow() -> AsyncIterator[AsyncSession]:
        async with transaction() as session:
            yield session
        if session in stored_in and not committed.is_set():
            committed.set()
            await asyncio.Event().wait()  # the answer does not come before the worker is stopped

    monkeypatch.setattr(result_writer, "store", noted)
    monkeypatch.setattr(database, "transaction", slow)

    @handles("order.paid", attempts=9, first_wait_s=600)
    async def broken(event: Event, ctx: Context) -> None:
        raise ValueError("never")

    shop = Workshop(database, broker, [broken])
    await shop.publish(order_paid(1))
    async with shop.working(), asyncio.timeout(30):
        await committed.wait()
    async with database.reading() as session:
        kept = await attempts.of_event(session, "default", "evt_1")
    assert [(row.number, row.outcome) for row in kept] == [(1, "retrying")]
    [run] = await shop.runs()
    assert (run.status, run.attempts, run.claimed_by) == ("retrying", 1, None)
