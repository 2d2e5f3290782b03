"""Many rows go in by one statement, in their order, each as it would alone; it is the same one for any number of them,
so it is prepared once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import Table, event, func, select
from sqlalchemy.exc import DBAPIError, StatementError

from consumer.columns import MARKS
from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.tables import EventRow
from tests.contract.ledger import facts

_EVENTS: Table = EventRow.__table__
ALL_MARKS = "".join(map(chr, MARKS[0]))
"""What texts are joined with first, where none of them has it."""


@contextmanager
def _inserts(database: Database) -> Iterator[list[str]]:
    found: list[str] = []

    def note(*sent: object) -> None:
        if str(sent[2]).startswith("INSERT INTO events"):
            found.append(str(sent[2]))

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)


async def _recorded(database: Database, numbers: Sequence[int]) -> list[int]:
    async with database.transaction() as session:
        new = await events.record(session, [facts.event(number) for number in numbers], facts.NOW)
    return [new["default", f"evt_{number}"] for number in numbers]


async def test_the_statement_is_one_for_any_number(database: Database) -> None:
    with _inserts(database) as sent:
        for first, many in ((0, 1), (1, 2), (3, 300)):
            await _recorded(database, range(first, first + many))
    assert len(sent) == 3
    # A connection keeps what it prepared: on SQLite a text for each number of rows let a worker grow by 120 MiB.
    assert len(set(sent)) == 1


# case: G5
async def test_they_are_numbered_in_their_order(database: Database) -> None:
    numbers = [*range(150, 300), *range(150)]
    seqs = await _recorded(database, numbers)
    assert seqs == sorted(seqs)
    async with database.reading() as session:
        ids = await session.scalars(select(_EVENTS.c.id).order_by(_EVENTS.c.seq))
        assert ids.all() == [f"evt_{number}" for number in numbers]


@pytest.mark.parametrize(
    "nothing", [None, "", "\0", "\ud800", "{1,2}", 'a"b\\c', "NULL", "\x1f", "\x1f\x1e\x1d", ALL_MARKS]
)
async def test_each_value_is_as_it_would_be_alone(database: Database, nothing: str | None) -> None:
    odd = replace(facts.event(1, raw=b"\0\xff{},"), order_id=nothing, customer=nothing)
    plain = facts.event(2)
    async with database.transaction() as session:
        await events.record(session, [odd, plain], facts.NOW)
        found = await events.load(session, [("default", "evt_1"), ("default", "evt_2")])
    stored = None if nothing is None else nothing.replace("\0", "\ufffd").replace("\ud800", "\ufffd")
    assert found["default", "evt_1"] == replace(odd, order_id=stored, customer=stored)
    assert found["default", "evt_2"] == plain


@pytest.mark.parametrize("word", [None, "", "\x1f", "\x1e"])
async def test_a_row_may_come_alone(database: Database, word: str | None) -> None:
    """Of each text column one text: an empty one is a text all the same."""
    alone = replace(facts.event(1), order_id=word, customer=word)
    async with database.transaction() as session:
        await events.record(session, [alone], facts.NOW)
        found = await events.load(session, [("default", "evt_1")])
    assert found == {("default", "evt_1"): alone}


async def test_nothing_is_cut(database: Database) -> None:
    """What is too long for its column PostgreSQL refuses, with all that came with it; SQLite knows no length."""
    long = replace(facts.event(1), delivery_id="d" * 101)
    if database.dialect == "postgresql":
        with pytest.raises(DBAPIError, match="too long"):
            await _stored_and_loaded(database, long)
        assert await _count(database) == 0
    else:
        assert (await _stored_and_loaded(database, long)).delivery_id == long.delivery_id


async def test_what_would_be_cut_is_refused(database: Database) -> None:
    """PostgreSQL stores no NUL, and SQLite would end a text there."""
    with pytest.raises(StatementError, match=r"NUL|invalid byte sequence"):
        await _stored_and_loaded(database, replace(facts.event(1), delivery_id="d\0d"))
    assert await _count(database) == 0


async def _stored_and_loaded(database: Database, one: Event) -> Event:
    async with database.transaction() as session:
        await events.record(session, [facts.event(2), one], facts.NOW)
        return (await events.load(session, [(one.application, one.id)]))[one.application, one.id]


async def _count(database: Database) -> int:
    async with database.reading() as session:
        return await session.scalar(select(func.count()).select_from(_EVENTS)) or 0
