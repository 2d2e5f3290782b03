"""A projection that reads a row which several keys share, and writes what it makes of it, loses no change.

On SQLite the transactions take turns; on PostgreSQL two workers read the same row at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from sqlalchemy import JSON, Column, Float, ForeignKeyConstraint, Integer, Numeric, String, Table, func, select, text
from sqlmodel import Field, SQLModel

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.ledger.tables import RunRow
from consumer.plugin import Context, Event, Reject, RetryLater, UtcDateTime, declared, handles
from consumer.plugin.session import AGAIN_S
from tests.support.handling.live import Live
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

EVENTS = 60
KEY = ("default", "today")
AT = datetime(2026, 1, 1, tzinfo=UTC)


class SharedTotal(SQLModel, table=True):
    """Sales of a day."""

    __tablename__ = "shared_total"
    __table__: ClassVar[Table]

    application: str = Field(sa_column=Column(String(64), primary_key=True))
    day: str = Field(sa_column=Column(String(10), primary_key=True))
    orders: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    sum: float = Field(default=0, sa_column=Column(Numeric(12, 2, asdecimal=False), nullable=False))
    mean: float | None = Field(default=float("nan"), sa_column=Column(Float))
    names: Any = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    at: datetime = Field(default=AT, sa_column=Column(UtcDateTime, nullable=False))


class SharedLine(SQLModel, table=True):
    """A sale of that day."""

    __tablename__ = "shared_line"
    __table_args__ = (ForeignKeyConstraint(["application", "day"], ["shared_total.application", "shared_total.day"]),)
    __table__: ClassVar[Table]

    number: int = Field(sa_column=Column(Integer, primary_key=True))
    application: str = Field(default="default", sa_column=Column(String(64), nullable=False))
    day: str = Field(default="today", sa_column=Column(String(10), nullable=False))


@pytest.fixture
async def tables(database: Database) -> AsyncIterator[Database]:
    """A ledger with that table, and a row in it."""
    async with database.engine.begin() as connection:
        await connection.run_sync(SharedTotal.__table__.create)
    async with database.transaction() as session:
        session.add(SharedTotal(application="default", day="today"))
    yield database
    async with database.engine.begin() as connection:
        await connection.run_sync(SharedTotal.__table__.drop)


async def total(database: Database) -> SharedTotal:
    async with database.reading() as session:
        return await session.get_one(SharedTotal, KEY)


POSTGRES = pytest.param("postgresql", marks=pytest.mark.postgres)
at_once = pytest.mark.parametrize("database_url", [POSTGRES], indirect=True)
Change = Callable[[SharedTotal], object]


async def both(database: Database, mine: Change, others: Change, *, lock: bool = False) -> SharedTotal:
    """A transaction reads the row, another one changes it, and then the first does."""
    async with database.transaction() as session:
        row = await session.get_one(SharedTotal, KEY)
        async with database.transaction() as other:
            others(await other.get_one(SharedTotal, KEY))
        if lock:
            await session.refresh(row, with_for_update=True)
        mine(row)
    return await total(database)


def count(row: SharedTotal) -> None:
    row.orders += 1


def move(row: SharedTotal) -> None:
    row.at = datetime(2026, 1, 2, tzinfo=UTC)


# case: G2, I23
@at_once
@pytest.mark.parametrize("others", [count, move])
async def test_who_did_not_see_anothers_change_fails_and_comes_again(others: Change, tables: Database) -> None:
    with pytest.raises(RetryLater, match="a row of shared_total was changed by another transaction") as told:
        await both(tables, count, others)
    assert told.value.after_s == AGAIN_S
    assert (await total(tables)).orders == (1 if others is count else 0)


# case: G2, I23
@at_once
async def test_who_holds_it_before_he_reads_it_sees_the_change(tables: Database) -> None:
    assert (await both(tables, count, count, lock=True)).orders == 2


async def remove(database: Database) -> None:
    async with database.transaction() as session:
        await session.delete(await session.get_one(SharedTotal, KEY))


async def remove_too(database: Database) -> None:
    async with database.transaction() as session:
        row = await session.get_one(SharedTotal, KEY)
        await remove(database)
        await session.delete(row)


async def change_again(database: Database) -> None:
    """Behind a savepoint that is undone, when it is another's turn."""
    async with database.transaction() as session:
        savepoint = await session.begin_nested()
        count(await session.get_one(SharedTotal, KEY))
        await session.flush()
        await savepoint.rollback()
        row = await session.get_one(SharedTotal, KEY)
        assert row.orders == 0
        async with database.transaction() as other:
            count(await other.get_one(SharedTotal, KEY))
        count(row)


# case: G2, I23
@at_once
@pytest.mark.parametrize("way", [remove_too, change_again])
async def test_so_does_who_removes_a_row_or_has_let_it_go(
    way: Callable[[Database], Awaitable[None]], tables: Database
) -> None:
    with pytest.raises(RetryLater):
        await way(tables)


@at_once
async def test_what_differs_without_another_is_nobodys_change(tables: Database) -> None:
    """Not what was changed in place, and is not written; not NaN; not what the database rounds, or inserted rounded."""
    async with tables.transaction() as session:
        row = await session.get_one(SharedTotal, KEY)
        new = SharedTotal(application="default", day="new", sum=1.005)
        session.add(new)
        row.names["in place"] = 1
        for one in (row, new, row, new):
            count(one)
            one.sum += 1.005
            await session.flush()
    assert (await total(tables)).orders == 2


@at_once
@pytest.mark.parametrize("in_savepoint", [False, True])
async def test_what_its_own_statement_changed_meanwhile_is_nobodys_change_either(
    tables: Database, in_savepoint: bool
) -> None:
    """It came again for ever, each time with the same statement before."""
    async with tables.transaction() as session:
        row = await session.get_one(SharedTotal, KEY)
        async with session.begin_nested() if in_savepoint else nullcontext():
            await session.execute(SharedTotal.__table__.update().values(orders=5))
        row.sum = 2.0
    found = await total(tables)
    assert (found.orders, found.sum) == (5, 2.0)


@at_once
async def test_a_row_that_others_name_is_locked_no_more_than_its_update_locks_it(tables: Database) -> None:
    """Two workers that insert a line of a day each, and then count it, would wait for each other for ever."""
    async with tables.engine.begin() as connection:
        await connection.run_sync(SharedLine.__table__.create)
    try:
        async with tables.transaction() as session, tables.transaction() as other:
            for one in (session, other):
                one.add(SharedLine(number=1 + (one is other)))
                await one.flush()
            count(await session.get_one(SharedTotal, KEY))
            await session.flush()
    finally:
        async with tables.engine.begin() as connection:
            await connection.run_sync(SharedLine.__table__.drop)
    assert (await total(tables)).orders == 1


@at_once
async def test_who_reckons_in_the_database_waits_and_does_not_come_again(tables: Database) -> None:
    def count_there(row: SharedTotal) -> None:
        row.orders = SharedTotal.__table__.c.orders + 1  # type: ignore[assignment]  # SQLAlchemy takes it

    assert (await both(tables, count_there, count)).orders == 2


# case: G2, I23
async def test_workers_count_every_order(tables: Database, broker: Broker) -> None:
    """With one attempt each: to be the later one, as above, costs none. Whether two meet here is left to chance."""

    @handles("order.paid", transactional=True, attempts=1, name="test:count")
    async def counts(event: Event, ctx: Context) -> None:
        count(await ctx.session.get_one(SharedTotal, KEY))

    shop = Workshop(tables, broker, [counts])
    await shop.publish(*[order_paid(number) for number in range(EVENTS)])
    async with shop.working(), shop.working():
        await eventually(lambda: shop.count("count", "succeeded", EVENTS), within_s=60)
    assert (await total(tables)).orders == EVENTS


# case: G2, I23
@at_once
@pytest.mark.parametrize("was_apart", [False, True], ids=["together", "apart"])
async def test_who_gives_way_in_a_deadlock_comes_again_at_no_attempts_cost(was_apart: bool, tables: Database) -> None:
    """One event has a row, the next waits for another's, who asks for the first. Behind a savepoint the first stays
    locked: each later event met the same, a second each, and with one attempt it was dead."""
    has_the_first, is_waited_for = asyncio.Event(), asyncio.Event()

    @handles("order.paid", transactional=True, attempts=1, name="test:counts")
    async def counts(event: Event, ctx: Context) -> None:
        if event.id == "evt_refused":
            raise Reject("never")
        if event.id == "evt_2":
            await is_waited_for.wait()
        count(await ctx.session.get_one(SharedTotal, ("default", str(event.order_id))))
        await ctx.session.flush()
        has_the_first.set()

    async with tables.transaction() as session:
        session.add_all([SharedTotal(application="default", day=f"order-{number}") for number in (1, 2)])
    handler = declared(counts)
    assert handler is not None
    shop = Live(tables, {}, application="default", more=[handler])
    if was_apart:
        await shop.arrive(order_paid("refused"))
    async with tables.engine.connect() as other:
        await other.execute(text("SET deadlock_timeout = '60s'"))  # so it is not the other one that gives way
        await other.execute(text("UPDATE shared_total SET orders = orders + 1 WHERE day = 'order-2'"))
        taking = asyncio.ensure_future(shop.arrive(order_paid(1), order_paid(2)))
        await asyncio.wait_for(has_the_first.wait(), 30)
        asking = text("UPDATE shared_total SET orders = orders + 1 WHERE day = 'order-1'")
        waiting = asyncio.ensure_future(other.execute(asking))
        await eventually(lambda: somebody_waits(tables))
        is_waited_for.set()
        await waiting
        await other.commit()
        await other.execute(text("RESET deadlock_timeout"))
        await taking
    await shop.pass_time(1)
    async with tables.reading() as session:
        found = (await session.execute(select(RunRow.__table__.c.event_id, RunRow.__table__.c.status))).all()
        assert {event_id for event_id, status in found if status != "succeeded"} == ({"evt_refused"} & {*dict(found)})
        counted = select(func.sum(SharedTotal.__table__.c.orders))
        assert (await session.execute(counted)).scalar() == 4


async def somebody_waits(database: Database) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with database.engine.connect() as connection:
        return bool((await connection.execute(text(waiting))).scalar())
