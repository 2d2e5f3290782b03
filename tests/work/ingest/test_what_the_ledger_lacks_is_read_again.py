"""A ledger that was set back (a restored backup, a database that failed over to an older copy) reads again what it
lacks, also under a worker that lives on; what is gone from the log holds nothing up."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from consumer.broker import Broker, EmbeddedBroker, Partition
from consumer.broker.embedded.member import EmbeddedSubscription
from consumer.errors import BrokerUnavailable, LedgerUnavailable
from consumer.ledger import Database, log_memory
from consumer.plugin import Context, Event, handles
from consumer.work.rounds import housekeeping, poll_loop
from tests.support.ports import eventually
from tests.work.workshop import TOPIC, Workshop, order_paid


@pytest.fixture(autouse=True)
def house_is_kept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds is what is tested, not how often it looks."""
    monkeypatch.setattr(housekeeping, "HOUSEKEEPING_S", 0.05)
    monkeypatch.setattr(poll_loop, "RETRY_MOST_S", 0.1)


@handles("order.paid", transactional=True, name="test:fine")
async def fine(event: Event, ctx: Context) -> None:
    """Does nothing."""


async def set_back(database: Database, to: int) -> None:
    """The ledger as it was after the first `to` events, each partition as far as it had come then: nothing is there
    twice, and nothing tells the worker."""
    async with database.transaction() as session:
        for table in ("runs", "events"):
            await session.execute(text(f"DELETE FROM {table} WHERE seq > :to"), {"to": to})
        await session.execute(text("UPDATE log_positions SET next_offset = 0"))


async def _is_committed(broker: Broker) -> bool:
    [report] = await broker.look_at_groups({"work": TOPIC})
    return report.records == 0


# case: O7
@pytest.mark.parametrize("lives_on", [True, False], ids=["the worker lives on", "the worker is started anew"])
async def test_all_of_it(sqlite_ledger: Database, broker: Broker, lives_on: bool) -> None:
    shop = Workshop(sqlite_ledger, broker, [fine])
    with capture_logs() as said:
        async with shop.working():
            await shop.publish(*(order_paid(number) for number in range(20)))
            await eventually(lambda: shop.all_succeeded(20))
            await eventually(lambda: _is_committed(broker))
            if lives_on:
                await set_back(sqlite_ledger, 3)
                await shop.publish(*(order_paid(number) for number in range(20, 40)))  # some for every partition
                await eventually(lambda: shop.all_succeeded(40))
        if not lives_on:
            await set_back(sqlite_ledger, 3)
            async with shop.working():
                await eventually(lambda: shop.all_succeeded(20))
    assert {line["event"] for line in said} & {"ledger_restored", "log_read_again"} == {"ledger_restored"}
    async with sqlite_ledger.reading() as session:
        noted = (await session.execute(text("SELECT actor, subject FROM audit WHERE action = 'ledger.restored'"))).all()
    assert set(noted) == {("work", f"topic:{TOPIC}")}, "who verifies the trail sees why an anchor does not fit"


# case: O7
async def test_it_is_in_the_trail_though_the_ledger_was_away_when_it_was_noted(
    sqlite_ledger: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, transaction, failures = Workshop(sqlite_ledger, broker, [fine]), sqlite_ledger.transaction, 0

    @asynccontextmanager
    async def failing_once() -> AsyncIterator[AsyncSession]:
        nonlocal failures
        async with transaction() as session:
            yield session
            if not failures and await _restores(session):
                failures += 1
                raise LedgerUnavailable("as it was to be committed")

    async with shop.working():
        await shop.publish(*(order_paid(number) for number in range(20)))
        await eventually(lambda: shop.all_succeeded(20))
        await eventually(lambda: _is_committed(broker))
    await set_back(sqlite_ledger, 3)
    monkeypatch.setattr(sqlite_ledger, "transaction", failing_once)
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(20))
    assert failures == 1
    async with sqlite_ledger.reading() as session:
        assert await _restores(session)


# case: O7
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "never committed"])
async def test_all_of_it_though_nothing_more_comes(
    sqlite_ledger: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """A shop at night: an operator's word of the lost second was nowhere until the next event of its partition came, or
    the worker was started anew."""
    shop = Workshop(sqlite_ledger, broker, [fine])

    async def away(*_: object) -> frozenset[Partition]:
        raise BrokerUnavailable("the group's offsets are away")

    async with shop.working():
        with monkeypatch.context() as patch:
            if not is_committed:
                patch.setattr(EmbeddedSubscription, "commit", away)
            await shop.publish(*(order_paid(number) for number in range(20)))
            await eventually(lambda: shop.all_succeeded(20))
            if is_committed:
                await eventually(lambda: _is_committed(broker))
            await set_back(sqlite_ledger, 3)
        await eventually(lambda: shop.all_succeeded(20))


async def _restores(session: AsyncSession) -> int:
    return await session.scalar(text("SELECT count(*) FROM audit WHERE action = 'ledger.restored'")) or 0


# case: B13
async def test_what_is_gone_from_the_log_holds_nothing_up(sqlite_ledger: Database, broker: Broker) -> None:
    shop = Workshop(sqlite_ledger, broker, [fine])
    async with sqlite_ledger.transaction() as session:
        for number in range(3):
            row = {"topic": TOPIC, "number": number}
            await session.execute(
                text("INSERT INTO log_positions (topic, partition, next_offset) VALUES (:topic, :number, -5)"), row
            )
    async with shop.working():
        await shop.publish(*(order_paid(number) for number in range(20)))
        await eventually(lambda: shop.all_succeeded(20))


# case: O7
async def test_all_of_it_though_the_offsets_of_what_it_lacks_were_never_committed(
    sqlite_ledger: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One outage takes the database and the group's offsets: the group stands no further than the ledger does."""
    shop, real = Workshop(sqlite_ledger, broker, [fine]), EmbeddedSubscription.commit

    async def away(*_: object) -> frozenset[Partition]:
        raise BrokerUnavailable("the group's offsets are away")

    async with shop.working():
        monkeypatch.setattr(EmbeddedSubscription, "commit", away)
        await shop.publish(*(order_paid(number) for number in range(20)))
        await eventually(lambda: shop.all_succeeded(20))
        await set_back(sqlite_ledger, 3)
        monkeypatch.setattr(EmbeddedSubscription, "commit", real)
        await shop.publish(*(order_paid(number) for number in range(20, 40)))
        await eventually(lambda: shop.all_succeeded(40))


# case: O7
async def test_what_the_log_has_deleted_meanwhile_is_told(sqlite_ledger: Database, broker: Broker) -> None:
    """An operator's word of that time was nowhere, and all was healthy."""
    shop = Workshop(sqlite_ledger, broker, [fine])
    async with shop.working():
        await shop.publish(*(order_paid(number) for number in range(20)))
        await eventually(lambda: shop.all_succeeded(20))
        await eventually(lambda: _is_committed(broker))
    await set_back(sqlite_ledger, 3)
    assert isinstance(broker, EmbeddedBroker)
    assert broker._file is not None
    for statement in ("DELETE FROM records", "UPDATE partitions SET first_offset = next_offset"):
        await broker._file.write(_does(statement), 5.0)
    with capture_logs() as said:
        async with shop.working():
            await shop.publish(*(order_paid(number) for number in range(20, 40)))
            await eventually(lambda: shop.all_succeeded(23))
    assert {line["topic"] for line in said if line["event"] == "log_records_lost"} == {TOPIC}
    async with sqlite_ledger.reading() as session:
        assert (await log_memory.load(session, TOPIC)).replaced_at is not None, "until state was reconciled"
        noted = (await session.execute(text("SELECT DISTINCT action FROM audit WHERE actor = 'work'"))).scalars().all()
    assert set(noted) == {"ledger.restored", "log.records_lost"}


def _does(statement: str) -> Callable[[sqlite3.Connection], object]:
    return lambda log: log.execute(statement)


# case: B13
async def test_what_is_gone_from_the_middle_of_the_log_is_looked_for_once(
    sqlite_ledger: Database, broker: Broker
) -> None:
    shop = Workshop(sqlite_ledger, broker, [fine])
    async with shop.working():
        await shop.publish(*(order_paid(number) for number in range(20)))
        await eventually(lambda: shop.all_succeeded(20))
    assert isinstance(broker, EmbeddedBroker)
    assert broker._file is not None
    await broker._file.write(lambda log: log.execute("UPDATE partitions SET next_offset = next_offset + 5"), 5.0)
    with capture_logs() as said:
        async with shop.working():
            for number in (20, 40):
                await shop.publish(*(order_paid(one) for one in range(number, number + 20)))
                await eventually(partial(shop.all_succeeded, number + 20))
    lines = [
        line["event"] for line in said if line["event"] in ("ledger_restored", "log_read_again", "log_records_lost")
    ]
    assert lines
    assert set(lines) == {"log_read_again"}, "nothing was restored"
    assert len(lines) <= 3, "once for each partition"
