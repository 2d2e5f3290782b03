"""Database: a transaction commits wholly or leaves nothing, however it ends, and gives its connection back."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Table, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger import Database, audit
from consumer.ledger.handling import events, outbox
from consumer.ledger.handling.outbox import Emitted
from consumer.ledger.tables import AuditRow, EventRow, OutboxRow
from consumer.plugin import Emission
from tests.contract.ledger.facts import NOW, Undone, event, persistently
from tests.support.ports import answers

TABLES: tuple[Table, ...] = (EventRow.__table__, OutboxRow.__table__, AuditRow.__table__)


async def write(session: AsyncSession, number: int = 1) -> None:
    """One row in each of three tables."""
    await events.record(session, [event(number)], NOW)
    emission = Emission(id=f"drv_{number}", type="fulfilment.requested", key="order:1", data={})
    await outbox.put(session, [Emitted(emission=emission, cause=event(number), handler="shop:project")], NOW)
    audit.note(session, at=NOW, application="default", actor="ops", action="x.done", subject=f"order:{number}")


def broken_row() -> AuditRow:
    """A row that the database refuses when it is flushed."""
    return AuditRow(at=NOW, application=None, actor="ops", action="x.done", subject="order:1")  # type: ignore[arg-type]  # breaks NOT NULL on purpose


async def counts(database: Database) -> list[int]:
    async with database.reading() as session:
        return [int(await session.scalar(select(func.count()).select_from(table)) or 0) for table in TABLES]


async def test_all_of_it_commits(database: Database, other: Database) -> None:
    async with database.transaction() as session:
        await write(session)
        assert await counts(other) == [0, 0, 0], "nothing is seen before it commits"
    assert await counts(other) == [1, 1, 1]


@pytest.mark.parametrize("error", [Undone, ValueError, KeyError, asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_any_exception_undoes_all_of_it_and_comes_out_as_it_is(
    database: Database, error: type[BaseException]
) -> None:
    raised = error("on the way")

    async def fail() -> None:
        async with database.transaction() as session:
            await write(session)
            await session.flush()
            raise raised

    with pytest.raises(error) as caught:
        await fail()
    assert caught.value is raised
    assert await counts(database) == [0, 0, 0]


async def test_a_failing_statement_undoes_all_of_it(database: Database) -> None:
    async def fail() -> None:
        async with database.transaction() as session:
            await write(session)
            session.add(broken_row())

    with pytest.raises(IntegrityError):
        await fail()
    assert await counts(database) == [0, 0, 0]


async def test_a_savepoint_undoes_its_own_part_only(database: Database) -> None:
    async with database.transaction() as session:
        await write(session, 1)
        for number in (2, 3):
            await session.flush()
            savepoint = await session.begin_nested()
            await write(session, number)
            await session.flush()
            inner = await session.begin_nested()
            await write(session, number * 10)
            await session.flush()
            await inner.rollback()
            await (savepoint.commit() if number == 3 else savepoint.rollback())
    async with database.reading() as session:
        assert set(await session.scalars(select(EventRow.__table__.c.id))) == {"evt_1", "evt_3"}
    assert await counts(database) == [2, 2, 2]


async def test_a_savepoint_survives_a_statement_that_failed_in_it(database: Database) -> None:
    """What the worker relies on: a handler's broken write must not spoil the transaction that it shares."""
    async with database.transaction() as session:
        await write(session)
        await session.flush()
        savepoint = await session.begin_nested()
        session.add(broken_row())
        with pytest.raises(IntegrityError):
            await session.flush()
        await savepoint.rollback()
        await write(session, 2)
    assert await counts(database) == [2, 2, 2]


@pytest.mark.parametrize("again", [0, 1, 2])
@pytest.mark.parametrize("is_writing", [False, True])
async def test_cancelled_transactions_leave_nothing_and_block_nobody(
    database: Database, other: Database, is_writing: bool, again: int
) -> None:
    """More than there are connections in the pool, cancelled at every stage, some again while they tidy up: a
    handler's time is over, a worker stops."""

    async def long(number: int, writing: asyncio.Event) -> None:
        async with database.transaction() as session:
            for step in range(1000):
                await write(session, 1000 * number + step)
                writing.set()

    ended: list[object] = []  # what was raised is kept, as a log would, and with it all that it refers to
    for number in range(30):
        writing = asyncio.Event()
        task = asyncio.create_task(long(number, writing))
        if is_writing:
            await writing.wait()
        for _ in range(number):
            await asyncio.sleep(0)
        for _ in range(1 + again):
            task.cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            ended.append((await asyncio.gather(task, return_exceptions=True))[0])
    assert {type(one) for one in ended} == {asyncio.CancelledError}
    assert await counts(other) == [0, 0, 0]
    async with asyncio.timeout(10):
        for ledger in (database, other):
            async with ledger.transaction() as session:
                await write(session, 1 if ledger is database else 2)
    assert await counts(database) == [2, 2, 2]


async def test_writers_of_two_processes_wait_for_each_other(database: Database, other: Database) -> None:
    await asyncio.gather(
        *(persistently((database, other)[number % 2], lambda s, n=number: write(s, n)) for number in range(40))  # type: ignore[misc]  # binds this writer's number
    )
    assert await counts(database) == [40, 40, 40]


async def test_a_reader_is_not_held_up_by_a_writer(database: Database, other: Database) -> None:
    async with database.transaction() as session:
        await write(session)
        await session.flush()
        async with asyncio.timeout(2):
            assert await counts(database) == [0, 0, 0]
            assert await counts(other) == [0, 0, 0]
            assert await answers(other)
