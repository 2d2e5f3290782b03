"""A transactional handler that commits, rolls back or closes fails alone: no write is kept by half, none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from consumer.broker import Broker
from consumer.errors import HandlerMisuse
from consumer.ledger import Database
from consumer.ledger.tables import OutboxRow
from consumer.loan import lent, see_to_statement
from consumer.plugin import Context, Event, Reject, handles
from consumer.work.execution.savepoint import in_savepoint
from consumer.work.outcome import Failed, Outcome, Succeeded, failed
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

EVENTS = 5


@handles("order.paid", transactional=True, name="test:emits")
async def emits(event: Event, ctx: Context) -> None:
    """What the built-in fulfilment does: a mark and a derived event that belong together."""
    ctx.emit("parcel.wanted", key=event.key, data={"order": event.order_id})


async def _by_connection(way: str, ctx: Context) -> None:
    await getattr(await ctx.session.connection(), way)()


async def _by_transaction(ctx: Context) -> None:
    ctx.session.get_transaction()


WAYS: dict[str, Callable[[Context], Awaitable[object]]] = {
    "session commit": lambda ctx: ctx.session.commit(),
    "session rollback": lambda ctx: ctx.session.rollback(),
    "session close": lambda ctx: ctx.session.close(),
    "session reset": lambda ctx: ctx.session.reset(),
    "session invalidate": lambda ctx: ctx.session.invalidate(),
    "connection commit": partial(_by_connection, "commit"),
    "connection rollback": partial(_by_connection, "rollback"),
    "connection close": partial(_by_connection, "close"),
    "connection invalidate": partial(_by_connection, "invalidate"),
    "sync commit": lambda ctx: ctx.session.run_sync(lambda session: session.commit()),
    "sync rollback": lambda ctx: ctx.session.run_sync(lambda session: session.rollback()),
    "sync close": lambda ctx: ctx.session.run_sync(lambda session: session.close()),
    "transaction": _by_transaction,
    "COMMIT": lambda ctx: ctx.session.execute(text("COMMIT")),
    "ROLLBACK": lambda ctx: ctx.session.execute(text("-- all of it\n  rollback")),
    "SET": lambda ctx: ctx.session.execute(text("SET search_path TO pg_catalog")),
    "PRAGMA": lambda ctx: ctx.session.execute(text("PRAGMA query_only = ON")),
    "set_config": lambda ctx: ctx.session.execute(select(func.set_config("search_path", "pg_catalog", False))),
    "advisory lock": lambda ctx: ctx.session.execute(text("SELECT 1, pg_try_advisory_lock (7)")),
}


# case: G2, H4
@pytest.mark.parametrize("way", WAYS)
async def test_whoever_shares_the_transaction_keeps_all_of_it(way: str, database: Database, broker: Broker) -> None:
    @handles("order.paid", transactional=True, attempts=1, name="test:ends")
    async def ends(event: Event, ctx: Context) -> None:
        await WAYS[way](ctx)

    shop = Workshop(database, broker, [ends, emits])
    await shop.publish(*[order_paid(number) for number in range(EVENTS)])
    async with shop.working():
        await eventually(lambda: shop.count("ends", "dead", EVENTS), within_s=30)
        await eventually(lambda: shop.count("emits", "succeeded", EVENTS), within_s=30)
    assert {(row.code, row.attempts) for row in await shop.runs("ends")} == {("handler_misuse", 1)}
    assert {row.attempts for row in await shop.runs("emits")} == {1}


# case: G2, H4
@pytest.mark.parametrize("how", ["commit", "rollback"])
@pytest.mark.parametrize("beneath", ["connection", "transaction"])
async def test_an_end_from_beneath_keeps_nothing_by_half_and_is_nobody_elses(
    beneath: str, how: str, database: Database, broker: Broker
) -> None:
    """By SQLAlchemy's own inner objects: when it is noticed nobody knows by whom, so each is tried alone."""

    @handles("order.paid", transactional=True, attempts=1, name="test:ends")
    async def ends(event: Event, ctx: Context) -> None:
        def end(session: Session) -> None:
            getattr(session.connection() if beneath == "connection" else session.get_transaction(), how)()

        await ctx.session.run_sync(end)

    shop = Workshop(database, broker, [ends, emits])
    await shop.publish(order_paid(1))
    with capture_logs():  # to show each failure in full takes longer than all the rest
        async with shop.working():
            await eventually(lambda: shop.count("ends", "dead", 1), within_s=30)
            await eventually(lambda: shop.count("emits", "succeeded", 1), within_s=30)
    assert {row.attempts for row in await shop.runs("emits")} == {1}


# case: G2, H4
async def test_what_a_handler_leaves_behind_finds_its_transaction_shut(database: Database, broker: Broker) -> None:
    """A task that nobody awaited opened the session anew: SQLite stayed locked, PostgreSQL lost a connection."""
    left: list[tuple[Context, AsyncSession]] = []

    @handles("order.paid", transactional=True, name="test:leaves")
    async def leaves(event: Event, ctx: Context) -> None:
        left.append((ctx, ctx.session))
        over.append(asyncio.create_task(late(ctx)))

    async def late(ctx: Context) -> None:
        await has_ended.wait()
        await ctx.session.execute(text("UPDATE events SET type = type"))

    over: list[asyncio.Task[None]] = []
    has_ended = asyncio.Event()
    shop = Workshop(database, broker, [leaves, emits])
    async with shop.working():
        await shop.publish(order_paid(1))
        await eventually(lambda: shop.all_succeeded(2), within_s=30)
        has_ended.set()
        ctx, session = left[0]
        too_late: list[Callable[[], Awaitable[object]]] = [
            lambda: over[0],
            lambda: session.execute(text("UPDATE events SET type = type")),
            lambda: ctx.locked(OutboxRow),
            lambda: asyncio.to_thread(ctx.emit, "parcel.wanted", "order:1", {}),
        ]
        for use in too_late:
            with pytest.raises(HandlerMisuse, match="had ended"):
                await use()
        await shop.publish(order_paid(2))
        await eventually(lambda: shop.all_succeeded(4), within_s=30)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "  ROLLBACK TO SAVEPOINT mine",
        "rollback work to mine",
        "SAVEPOINT mine",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "PRAGMA table_info(events)",
        "UPDATE shop SET a = 'COMMIT'",
        "/* COMMIT */ SELECT 1",
        "SELECT pg_advisory_xact_lock(7)",
        "ENDED",
        "-- COMMIT",
        "\n" * 40,
    ],
)
def test_any_other_statement_is_the_handlers_own(statement: str) -> None:
    with lent("test:asks"):
        see_to_statement(statement)


async def test_a_savepoint_of_its_own_is_the_handlers(sqlite_ledger: Database, broker: Broker) -> None:
    @handles("order.paid", transactional=True, name="test:nests")
    async def nests(event: Event, ctx: Context) -> None:
        async with ctx.session.begin_nested() as mine:
            await ctx.session.execute(text("UPDATE events SET type = 'lost'"))
            await mine.rollback()
        async with ctx.session.begin_nested():
            assert (await ctx.session.execute(text("SELECT count(*) FROM events"))).scalar_one() >= 1

    shop = Workshop(sqlite_ledger, broker, [nests])
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(1), within_s=30)
    async with sqlite_ledger.reading() as session:
        assert (await session.execute(text("SELECT type FROM events"))).scalars().all() == ["order.paid"]


# --- what takes no more -----------------------------------------------------------------------------------------


class Broken:
    """A session whose transaction takes no statement any more; `did` is what was done with its savepoint."""

    def __init__(self, dialect: str) -> None:
        self.did: list[str] = []
        self._bind = SimpleNamespace(dialect=SimpleNamespace(name=dialect))

    def get_bind(self) -> Any:
        """As a session does."""
        return self._bind

    async def flush(self) -> None:
        """As a session does."""
        self.did.append("flush")

    def expunge_all(self) -> None:
        """Nothing was loaded."""

    async def begin_nested(self) -> Broken:
        """As a session does: here it is the savepoint as well."""
        self.did.append("savepoint")
        return self

    async def execute(self, _: object) -> None:
        """As a session does."""
        raise RuntimeError("current transaction is aborted")

    async def rollback(self) -> None:
        """As a savepoint does."""
        self.did.append("rollback")

    async def commit(self) -> None:
        """As a savepoint does."""
        self.did.append("commit")


@pytest.mark.parametrize(
    ("dialect", "outcome", "end"),
    [
        ("postgresql", Succeeded(), ["flush", "rollback"]),
        ("sqlite", Succeeded(), ["flush", "commit"]),
        ("postgresql", failed(Reject("no")), ["rollback"]),
        ("sqlite", failed(Reject("no")), ["rollback"]),
    ],
)
async def test_its_handler_has_failed_and_what_it_wrote_is_undone(
    dialect: str, outcome: Outcome, end: list[str]
) -> None:
    session: Any = Broken(dialect)

    async def transactional(*_: object, limit_s: float) -> Outcome:
        assert limit_s == 3.0
        return outcome

    executor: Any = SimpleNamespace(transactional=transactional)
    given: Any = None
    found = await in_savepoint(session, executor, given, given, given, limit_s=3.0)
    assert session.did == ["flush", "savepoint", *end]
    assert isinstance(found, Failed) is (end[-1] == "rollback")
