"""A search of the events ends: it passes over so many and no more, says so, and looks elsewhere when told where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumer.ledger import Database
from consumer.ledger.handling import events, runs
from consumer.ledger.handling.events import EventFilter, Found
from consumer.ledger.tables import RunStatus
from tests.contract.ledger import facts

MAX = 10
EVENTS = 30


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SEARCHED_MAX", MAX)


@pytest.fixture
async def stored(database: Database) -> Database:
    """Events one second apart; the first two are of another type and have a dead run, that of the others succeeded."""
    given = [
        replace(
            facts.event(number), received_at=facts.later(number), type="order.expired" if number < 3 else "order.paid"
        )
        for number in range(1, EVENTS + 1)
    ]
    done = [
        facts.run(number, status=RunStatus.DEAD if number < 3 else RunStatus.SUCCEEDED, blocking=False)
        for number in range(1, EVENTS + 1)
    ]
    async with database.transaction() as session:
        await events.record(session, given, facts.NOW)
        await runs.add(session, done, facts.NOW)
    return database


async def search(database: Database, wanted: EventFilter) -> Found:
    async with database.reading() as session:
        return await events.search(session, wanted)


def ids(found: Found) -> list[str]:
    return [row.id for row in found.rows]


async def test_it_ends_and_says_so(stored: Database) -> None:
    found = await search(stored, EventFilter(status="skipped"))
    assert (ids(found), found.is_all) == ([], False)


async def test_a_time_is_where_to_look(stored: Database) -> None:
    found = await search(stored, EventFilter(status="dead", until=facts.later(8)))
    assert (ids(found), found.is_all) == (["evt_2", "evt_1"], True)
    found = await search(
        stored, EventFilter(type="order.*", handler=facts.HANDLER, since=facts.later(5), until=facts.later(7))
    )
    assert (ids(found), found.is_all) == (["evt_6", "evt_5"], True)


async def test_a_type_and_an_id_are_found_however_old(stored: Database) -> None:
    for wanted in (EventFilter(type="order.expired", status="dead"), EventFilter(type="order.expired")):
        found = await search(stored, wanted)
        assert (ids(found), found.is_all) == (["evt_2", "evt_1"], True)
    found = await search(stored, EventFilter(event_id="evt_1", handler=facts.HANDLER, status="dead"))
    assert (ids(found), found.is_all) == (["evt_1"], True)


# case: O5
@pytest.mark.parametrize("status", [RunStatus.RETRYING, RunStatus.PARKED, RunStatus.DEAD])
async def test_what_waits_is_found_however_many_came_since(stored: Database, status: RunStatus) -> None:
    """`status` says that this list names what an order waits for: it named none beside 100,000 newer events."""
    waiting = [facts.run(1, handler="shop:mail", status=status, blocking=False, due_s=9)]
    waiting += [facts.run(number, handler="shop:book", status=status, blocking=False) for number in (1, 2, 4)]
    async with stored.transaction() as session:
        await runs.add(session, waiting, facts.NOW)
    for given, found in (
        ({}, ["evt_4", "evt_2", "evt_1"]),
        ({"limit": 2}, ["evt_4", "evt_2"]),
        ({"handler": "shop:mail"}, ["evt_1"]),
        ({"application": "default", "type": "order.expired"}, ["evt_2", "evt_1"]),
        ({"type": "order.*", "until": facts.later(9)}, ["evt_4", "evt_2", "evt_1"]),
        ({"since": facts.later(2), "until": facts.later(4)}, ["evt_2"]),
        ({"fingerprint": "a" * 16}, []),
        ({"application": "other"}, []),
    ):
        told = await search(stored, EventFilter(status=status, **given))
        assert (ids(told), told.is_all) == (found, True), given


async def test_of_very_much_that_waits_it_says_so(stored: Database) -> None:
    behind = [facts.run(one, handler="shop:book", status=RunStatus.RETRYING, due_s=one) for one in range(1, 13)]
    async with stored.transaction() as session:
        await runs.add(session, behind, facts.NOW)
    found = await search(stored, EventFilter(status="retrying"))
    assert (len(found.rows), found.is_all) == (MAX, False)


async def test_enough_is_enough(stored: Database) -> None:
    found = await search(stored, EventFilter(handler=facts.HANDLER, limit=2))
    assert (ids(found), found.is_all) == (["evt_30", "evt_29"], True)
    found = await search(stored, EventFilter())
    assert (len(found.rows), found.is_all) == (EVENTS, True), "nothing is passed over"
