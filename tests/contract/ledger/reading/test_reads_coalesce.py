"""Reads that handlers asked for: one per object, at the earliest time asked for; a request is never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import text

from consumer.ledger import Database
from consumer.ledger.reading import read_requests
from consumer.ledger.tables import ReadRow
from consumer.plugin import ReadRequest
from tests.contract.ledger.facts import NOW, later, persistently


def order(number: int, at_s: float | None = None) -> ReadRequest:
    return ReadRequest(kind="order", object_id=f"o{number}", not_before=None if at_s is None else later(at_s))


async def ask(database: Database, *requests: ReadRequest, application: str = "default", at_s: float = 0) -> None:
    async with database.transaction() as session:
        await read_requests.ask(session, application, requests, later(at_s))


async def due(
    database: Database, at_s: float = 0, *, limit: int = 100, application: str | None = None
) -> Sequence[ReadRow]:
    async with database.reading() as session:
        return await read_requests.due(session, later(at_s), limit, application)


async def version(database: Database) -> int:
    async with database.transaction() as session:
        return await read_requests.next_version(session)


async def done(database: Database, rows: Sequence[ReadRow], at_s: float = 5, *, of: int | None = None) -> None:
    """They were answered by the read of version `of`; None: by one that begins now."""
    async with database.transaction() as session:
        newest = await read_requests.next_version(session)
        await read_requests.done(session, rows, newest if of is None else of, later(at_s))


@pytest.mark.parametrize("times", [(10.0, 3.0), (3.0, 10.0), (None, 10.0), (10.0, None)])
@pytest.mark.parametrize("together", [True, False])
async def test_the_earlier_time_wins(database: Database, times: tuple[float | None, ...], together: bool) -> None:
    requests = [order(1, at_s) for at_s in times]
    for batch in [requests] if together else [[one] for one in requests]:
        await ask(database, *batch)
    earliest = min(at_s or 0 for at_s in times)
    assert await due(database, earliest - 0.000001) == []
    found = await due(database, earliest)
    assert [(row.object_id, row.due_at) for row in found] == [("o1", later(earliest))]


@pytest.mark.parametrize(("first", "second", "kept"), [(None, 10.0, "a"), (10.0, None, "b"), (None, None, "a")])
@pytest.mark.parametrize("together", [True, False])
async def test_it_is_of_the_trace_of_what_wants_it_soonest(
    database: Database, first: float | None, second: float | None, kept: str, together: bool
) -> None:
    requests = [replace(order(1, at), traceparent=trace) for at, trace in ((first, "a"), (second, "b"))]
    for batch in [requests] if together else [[one] for one in requests]:
        await ask(database, *batch)
    assert [row.traceparent for row in await due(database, 10)] == [kept]


async def test_kind_object_and_application_tell_requests_apart(database: Database) -> None:
    subscription = ReadRequest(kind="subscription", object_id="o1")
    await ask(database, order(1), order(2), subscription)
    await ask(database, order(1), application="second")
    assert {(row.application, row.kind, row.object_id) for row in await due(database)} == {
        ("default", "order", "o1"),
        ("default", "order", "o2"),
        ("default", "subscription", "o1"),
        ("second", "order", "o1"),
    }
    assert len(await due(database, application="second")) == 1


async def test_oldest_first_and_bounded(database: Database) -> None:
    await ask(database, order(1, -1), order(2, -3), order(3, -2))
    assert [row.object_id for row in await due(database, limit=2)] == ["o2", "o3"]


# case: B23
async def test_each_kind_is_due_by_itself_whatever_is_older(database: Database) -> None:
    older = [ReadRequest(kind="subscription", object_id=f"s{number}") for number in range(20)]
    await ask(database, *older)
    session_read = ReadRequest(kind="session", object_id="c1", not_before=later(2))
    await ask(database, order(1, 1), session_read, ReadRequest(kind="service_order", object_id="x1"))
    async with database.reading() as session:
        found = await read_requests.due(session, later(5), 10, "default", "session", "service_order")
        assert [row.object_id for row in found] == ["x1", "c1"]
        assert [row.object_id for row in await read_requests.due(session, later(5), 10, "default", "order")] == ["o1"]
        assert len(await read_requests.due(session, later(5), 100, "default")) == 23


async def test_what_was_read_is_gone(database: Database) -> None:
    await ask(database, order(1), order(2))
    await done(database, (await due(database))[:1])
    assert len(await due(database, 100)) == 1


async def test_a_request_that_comes_during_the_read_is_not_lost(database: Database) -> None:
    await ask(database, order(1))
    under_way = await due(database)
    await ask(database, order(1), at_s=1)
    await done(database, under_way, at_s=5)
    again = await due(database, 5)
    assert [(row.object_id, row.due_at, row.attempts) for row in again] == [("o1", later(5), 0)]
    await done(database, again)
    assert await due(database, 100) == []


# case: A40
async def test_an_answer_settles_nothing_that_was_asked_for_after_its_read_began(database: Database) -> None:
    """Not even one that looks the same: answered meanwhile by a newer read, and asked for anew."""
    await ask(database, order(1), order(2))
    rows, older = await due(database), await version(database)
    await done(database, rows)
    await ask(database, order(1), at_s=1)
    again = await due(database, 1)
    assert [row.asked for row in again] == [rows[0].asked]
    await done(database, [*rows, *again], of=older)
    [left] = await due(database, 5)
    async with database.transaction() as session:
        await read_requests.put_off(session, rows[0], due_at=later(60), code="not_found")
    [left] = await due(database, 5)
    assert left.code is None, "what failed was the older read"
    await done(database, [left])
    assert await due(database, 100) == []


# case: A40, B22
async def test_a_page_may_answer_what_was_asked_for_before_it(database: Database) -> None:
    await ask(database, order(1), order(2))
    page = await version(database)
    await ask(database, order(2), order(3))

    async def due_of(of: int | None) -> list[str]:
        names = ["o1", "o2", "o3"]
        async with database.reading() as session:
            found = await read_requests.due_of(session, "default", "order", names, NOW, version=of)
        return sorted(row.object_id for row in found)

    assert await due_of(page) == ["o1"]
    assert await due_of(None) == await due_of(await version(database)) == ["o1", "o2", "o3"]


# case: O9
async def test_what_older_code_asks_for_is_answered_and_not_lost(database: Database) -> None:
    """A rolling deploy: it knows nothing of versions, and counts."""
    insert = (
        "INSERT INTO reads (application, kind, object_id, asked, due_at, again_at, attempts, created_at)"
        " SELECT 'default', 'order', 'o2', asked, due_at, again_at, attempts, created_at FROM reads"
    )
    await ask(database, order(1))
    async with database.transaction() as session:
        await session.execute(text(insert))
    rows, begun = await due(database), await version(database)
    async with database.transaction() as session:
        await session.execute(text("UPDATE reads SET asked = asked + 1 WHERE object_id = 'o2'"))
    await done(database, rows, of=begun)
    assert [row.object_id for row in await due(database, 5)] == ["o2"]
    await done(database, await due(database, 5))
    assert await due(database, 100) == []


async def test_who_asks_at_once_with_another_is_answered_by_no_older_read(database: Database, other: Database) -> None:
    # case: A40
    """Two that ask wait for each other: the later word about versions stands, whoever writes last."""
    await ask(database, order(1))
    newest = await version(database)
    await ask(database, order(1))
    async with database.transaction() as session:
        await session.execute(text("UPDATE sequences SET value = value - 5"))
    await ask(other, order(1))
    await done(database, await due(database), of=newest)
    assert len(await due(database, 5)) == 1


# case: A34, G7
async def test_a_failed_read_is_put_off_and_stays(database: Database) -> None:
    await ask(database, order(1))
    for number in (1, 2):
        row = (await due(database, number * 60))[0]
        async with database.transaction() as session:
            await read_requests.put_off(session, row, due_at=later((number + 1) * 60), code="not_found")
    assert await due(database, 179) == []
    row = (await due(database, 180))[0]
    assert (row.attempts, row.code) == (2, "not_found")


async def test_a_new_request_brings_a_read_that_was_put_off_forward(database: Database) -> None:
    await ask(database, order(1))
    async with database.transaction() as session:
        await read_requests.put_off(
            session, (await read_requests.due(session, NOW, 1))[0], due_at=later(3600), code="not_found"
        )
    await ask(database, order(1), at_s=10)
    assert [row.due_at for row in await due(database, 10)] == [later(10)]


async def test_reads_that_end_while_others_ask_lose_nothing(database: Database, other: Database) -> None:
    """Requests by one process, reads by another: no read that began before the last request is the last one."""
    begun = 0
    reads_after: list[int] = []

    async def asks() -> None:
        nonlocal begun
        for _ in range(30):
            begun += 1
            await persistently(
                database, lambda session: read_requests.ask(session, "default", [order(1), order(2)], NOW)
            )
            await asyncio.sleep(0)

    async def answers() -> None:
        while True:
            was_over = asking.done()  # asked before looking: what the last request left is not overlooked
            if rows := await due(other):
                newest = await persistently(other, read_requests.next_version)
                reads_after.append(begun)
                await asyncio.sleep(0.002)
                await persistently(other, partial(read_requests.done, reads=rows, version=newest, now=NOW))
            elif was_over:
                return
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        asking = asyncio.create_task(asks())
        await asyncio.gather(asking, answers())
    assert reads_after[-1] == 30
    assert await due(database) == []


async def test_asking_for_nothing_is_fine(database: Database) -> None:
    await ask(database)
    await done(database, [])
    assert await due(database) == []
