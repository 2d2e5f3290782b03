"""An outage of PostgreSQL: every use says LedgerUnavailable, nothing is half stored, and the same engine recovers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, make_url, select, text

from consumer.errors import LedgerReadOnly, LedgerUnavailable, StatementCancelled
from consumer.ledger import Database, postgresql_driver
from consumer.ledger.engine import database, schema
from consumer.ledger.handling import events
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.plans import plans
from consumer.ledger.tables import EventRow
from tests.contract.ledger.facts import NOW, event
from tests.support.ports import answers, eventually
from tests.support.postgres import StoppableServer, create_database, stoppable_server
from tests.support.proxy import TcpProxy

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

OURS = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
TOLD_THE_SERVER = "SELECT name, source FROM pg_settings WHERE name LIKE 'tcp%'"


@pytest.fixture(scope="module")
def server() -> Iterator[StoppableServer]:
    """A server of this module's own, because others would notice that it is gone."""
    with stoppable_server() as found:
        yield found


@pytest.fixture
async def ledger(server: StoppableServer) -> AsyncIterator[Database]:
    await asyncio.to_thread(server.start)
    found = Database(await asyncio.to_thread(create_database, server.uri))
    await schema.upgrade(found)
    yield found
    await found.stop()
    await asyncio.to_thread(server.start)


async def stored(ledger: Database) -> int:
    async with ledger.reading() as session:
        return int(await session.scalar(select(func.count()).select_from(EventRow.__table__)) or 0)


async def record(ledger: Database, number: int) -> None:
    async with ledger.transaction() as session:
        await events.record(session, [event(number)], NOW)


@pytest.mark.parametrize("mode", ["immediate", "fast"])
async def test_while_it_is_down_everything_is_unavailable_and_then_it_works_again(
    ledger: Database, server: StoppableServer, mode: str
) -> None:
    await asyncio.gather(*(record(ledger, number) for number in range(5)))
    await asyncio.to_thread(server.stop, mode)
    for _ in range(3):
        with pytest.raises(LedgerUnavailable):
            await record(ledger, 99)
        with pytest.raises(LedgerUnavailable):
            await stored(ledger)
    with pytest.raises(LedgerUnavailable):
        await schema.require_current(ledger)
    assert not await answers(ledger)
    await asyncio.to_thread(server.start)
    await eventually(lambda: answers(ledger))
    await record(ledger, 99)
    assert await stored(ledger) == 6


async def test_a_transaction_that_was_open_is_gone_whole(ledger: Database, server: StoppableServer) -> None:
    async def interrupted() -> None:
        async with ledger.transaction() as session:
            await events.record(session, [event(1)], NOW)
            await asyncio.to_thread(server.stop, "immediate")
            await events.record(session, [event(2)], NOW)

    with pytest.raises(LedgerUnavailable):
        await interrupted()
    await asyncio.to_thread(server.start)
    await eventually(lambda: answers(ledger))
    assert await stored(ledger) == 0


async def test_a_commit_that_finds_it_gone_says_so(ledger: Database, server: StoppableServer) -> None:
    async def interrupted() -> None:
        async with ledger.transaction() as session:
            await events.record(session, [event(1)], NOW)
            await asyncio.to_thread(server.stop, "immediate")

    with pytest.raises(LedgerUnavailable):
        await interrupted()
    await asyncio.to_thread(server.start)
    await eventually(lambda: answers(ledger))
    assert await stored(ledger) == 0


async def test_writers_that_go_on_through_a_restart_store_what_they_were_told(
    ledger: Database, server: StoppableServer
) -> None:
    """Every number whose transaction returned is there; nothing but LedgerUnavailable is ever raised."""
    acknowledged: list[int] = []
    over = asyncio.Event()

    async def writer(first: int) -> int:
        failures = 0
        number = first
        while not over.is_set():
            try:
                await record(ledger, number)
            except LedgerUnavailable:
                failures += 1
                await asyncio.sleep(0.01)
            else:
                acknowledged.append(number)
                number += 4
        return failures

    async def goes_on() -> None:
        known = len(acknowledged)
        await eventually(lambda: len(acknowledged) > known + 20)

    async def restart() -> None:
        try:
            for mode in ("immediate", "fast"):
                await goes_on()
                await asyncio.to_thread(server.stop, mode)
                await asyncio.to_thread(server.start)
            await goes_on()
        finally:
            over.set()

    *failures, _ = await asyncio.gather(*(writer(first) for first in range(4)), restart())
    assert sum(one for one in failures if one is not None) > 0
    async with ledger.reading() as session:
        there = set(await session.scalars(select(EventRow.__table__.c.id)))
    assert {f"evt_{number}" for number in acknowledged} <= there


async def _cut_all(ledger: Database) -> None:
    """End every connection of the ledger, which lie in its pool."""
    other = Database(str(ledger.engine.url.render_as_string(hide_password=False)), pool_size=1)
    try:
        async with other.reading() as session:
            others = "pid <> pg_backend_pid() AND datname = current_database()"
            cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
            assert (await session.execute(text(cut))).all()
    finally:
        await other.stop()


async def test_a_connection_that_broke_while_it_rested_is_noticed_by_nobody(
    ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record(ledger, 1)
    await _cut_all(ledger)
    monkeypatch.setattr(postgresql_driver, "RESTED_S", 0.0)
    await record(ledger, 2)
    assert await stored(ledger) == 2


async def test_one_that_broke_a_moment_after_it_was_used_fails_once(
    ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_driver, "RESTED_S", 3600.0)
    await asyncio.gather(*(record(ledger, number) for number in range(5)))
    await _cut_all(ledger)
    with pytest.raises(LedgerUnavailable):
        await record(ledger, 5)
    await record(ledger, 5)
    assert await stored(ledger) == 6


async def test_a_connection_that_a_network_lost_without_a_word_is_given_up_at_both_ends(
    ledger: Database, server: StoppableServer
) -> None:
    """Before the claims of who waits on it end, and what it had begun holds no lock for longer."""
    there = make_url(str(ledger.engine.url))
    async with TcpProxy(Path(str(there.query["host"])) / ".s.PGSQL.5432") as proxy:
        far = Database(f"postgresql+asyncpg://{there.username}@127.0.0.1:{proxy.port}/{there.database}")
        try:
            async with far.reading() as session:
                driver: Any = (await (await session.connection()).get_raw_connection()).driver_connection
                ours = driver._transport.get_extra_info("socket")
                options = {name: ours.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in OURS}
                rows = await session.execute(text(TOLD_THE_SERVER))
                told = {row.name: row.source for row in rows}
        finally:
            await far.stop()
    assert options == {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 11_000}
    assert options["TCP_USER_TIMEOUT"] / 1000 < CLAIM_LEASE_S
    assert set(told.values()) == {"client"}, told
    assert len(told) == len(OURS)


# --- several hosts --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _doors(ledger: Database, count: int) -> AsyncIterator[list[TcpProxy]]:
    """So many ways to the server, each as a host of its own."""
    socket_of = Path(str(make_url(str(ledger.engine.url)).query["host"])) / ".s.PGSQL.5432"
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(TcpProxy(socket_of)) for _ in range(count)]


@asynccontextmanager
async def _by(ledger: Database, doors: Sequence[TcpProxy]) -> AsyncIterator[Database]:
    """The ledger as a URL of these hosts finds it, of which it wants the primary."""
    there = make_url(str(ledger.engine.url))
    hosts = "&".join(f"host=127.0.0.1:{door.port}" for door in doors)
    words = f"{hosts}&ssl=disable&target_session_attrs=read-write"
    found = Database(f"postgresql+asyncpg://{there.username}@/{there.database}?{words}", pool_size=1)
    try:
        yield found
    finally:
        await found.stop()


# case: O2
async def test_a_host_that_answers_nothing_keeps_nobody_from_the_next(ledger: Database) -> None:
    """A primary whose machine went off: it had all the time there was, and nobody asked the one that was promoted."""
    async with _doors(ledger, 2) as doors, _by(ledger, doors) as found:
        doors[0].block()
        async with asyncio.timeout(database.CHECK_WITHIN_S):
            await record(found, 1)
        doors[0].unblock()
        assert await stored(found) == 1


# case: O2
async def test_a_host_that_is_slow_is_taken_all_the_same_where_no_other_will_do(ledger: Database) -> None:
    async with _doors(ledger, 2) as doors, _by(ledger, doors) as found:
        await doors[1].refuse()
        doors[0].delay_s = 0.3
        await record(found, 1)
        assert await stored(found) == 1


# case: O2
async def test_where_no_host_is_the_primary_it_is_read_only_until_one_is(ledger: Database) -> None:
    """In a switchover there is none for a while: every role ended, and `serve` took no webhook."""
    async with _doors(ledger, 2) as doors, _by(ledger, doors) as found:
        await _told(ledger, "SET default_transaction_read_only = on")
        with pytest.raises(LedgerReadOnly) as told:
            await record(found, 1)
        assert told.value.retryable
        await doors[1].refuse()
        with pytest.raises(LedgerReadOnly):  # who answers knows more than who does not
            await record(found, 1)
        await _told(ledger, "RESET default_transaction_read_only")
        await record(found, 1)
        assert await stored(found) == 1


async def _told(ledger: Database, *statements: str) -> None:
    """What an administrator says of our database, for connections that begin from then on."""
    other = Database(str(ledger.engine.url.render_as_string(hide_password=False)), pool_size=1)
    try:
        async with other.transaction() as session:
            name = ledger.engine.url.database
            await session.execute(text("SET TRANSACTION READ WRITE"))
            for statement in statements:
                await session.execute(text(f'ALTER DATABASE "{name}" {statement}'))
    finally:
        await other.stop()


async def test_a_database_that_takes_writes_again_is_written_to_by_the_connections_that_are_there(
    ledger: Database,
) -> None:
    """A managed server whose disk was full, or a name that leads to the new primary: nobody cuts what is open."""
    await _told(ledger, "SET default_transaction_read_only = on")
    await ledger.stop()

    async def both(first: int) -> list[object]:
        return await asyncio.gather(*(record(ledger, first + n) for n in range(4)), return_exceptions=True)

    assert {type(one) for one in await both(0)} == {LedgerReadOnly}
    await asyncio.gather(*(stored(ledger) for _ in range(4)))  # reading goes on, and opens connections
    await _told(ledger, "RESET default_transaction_read_only")
    assert LedgerReadOnly in {type(one) for one in await both(0)}, "they keep to what they began with, once"
    assert await both(0) == [None] * 4
    assert await stored(ledger) == 4


async def test_a_limit_of_the_users_that_was_raised_holds_for_connections_that_are_there(ledger: Database) -> None:
    await _told(ledger, "SET statement_timeout = 50")
    await ledger.stop()

    async def slow() -> None:
        async with ledger.transaction() as session:
            await session.execute(text("SELECT pg_sleep(0.2)"))

    with pytest.raises(StatementCancelled):
        await slow()
    await _told(ledger, "RESET statement_timeout")
    await slow()
    async with ledger.migrating() as engine, engine.connect() as connection:
        assert await connection.scalar(text("SELECT current_setting('statement_timeout')")) == "0"


# case: O2
# cause: 25P04
async def test_a_limit_of_the_users_for_a_transaction_is_named_and_holds_for_no_migration(
    ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger.reading() as session:
        if int(await session.scalar(text("SHOW server_version_num")) or 0) < 17_00_00:
            pytest.skip("PostgreSQL has it since 17")
    await _told(ledger, "SET transaction_timeout = 2000")
    await ledger.stop()
    with pytest.raises(StatementCancelled):
        async with ledger.transaction() as session:
            await session.execute(text("SELECT pg_sleep(3)"))
    waits = schema._wait_for_others

    def slowly(connection: Connection) -> None:
        connection.execute(text("SELECT pg_sleep(3)"))
        waits(connection)

    monkeypatch.setattr(schema, "_wait_for_others", slowly)
    await schema.upgrade(ledger)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_whatever_its_default_isolation_is_who_waited_for_a_lock_sees_what_its_holder_wrote(
    ledger: Database, level: str
) -> None:
    """An archive took out the bodies that a replay had begun to need; two writers of one row were refused."""
    await _told(ledger, f"SET default_transaction_isolation = '{level}'")
    await ledger.stop()
    holds, waits = asyncio.Event(), asyncio.Event()

    async def holder() -> None:
        async with ledger.transaction() as session:
            await plans.take_turns(session)
            holds.set()
            await waits.wait()
            await events.record(session, [event(1)], NOW)

    async def waiter() -> int:
        await holds.wait()
        async with ledger.transaction() as session:
            waiting = asyncio.create_task(plans.take_turns(session))
            waits.set()
            await waiting
            return int(await session.scalar(select(func.count()).select_from(EventRow.__table__)) or 0)

    _, seen = await asyncio.gather(holder(), waiter())
    assert seen == 1
    refused = await asyncio.gather(*(ledger.probe() for _ in range(20)), return_exceptions=True)
    assert set(refused) == {None}
