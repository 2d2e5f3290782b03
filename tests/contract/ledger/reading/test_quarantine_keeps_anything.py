"""Quarantine: each delivery once, raw, whatever it is called."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from consumer.events import Delivery
from consumer.ledger import Database, health
from consumer.ledger.reading import quarantine
from consumer.ledger.reading.quarantine import Kept
from consumer.ledger.tables import QuarantineRow
from consumer.reason import Reason, reason_of
from tests.contract.ledger.facts import NOW, delivery


async def put(database: Database, *given: tuple[Delivery, Reason]) -> None:
    async with database.transaction() as session:
        await quarantine.put(session, given, NOW)


async def newest(database: Database, **wanted: object) -> list[Kept]:
    async with database.reading() as session:
        return list(await quarantine.newest(session, **wanted))  # type: ignore[arg-type]  # the filters of `newest`


# case: G2
async def test_a_delivery_is_kept_once(database: Database) -> None:
    no_id, flooded = Reason.NO_EVENT_ID, Reason.FLOODED
    await put(database, (delivery(1), no_id), (delivery(1), flooded), (delivery(2), no_id))
    await put(database, (delivery(1), flooded), (delivery(1, application="second"), flooded))
    assert [(row.application, row.delivery_id, row.reason) for row in reversed(await newest(database))] == [
        ("default", "del_1", "no_event_id"),
        ("default", "del_2", "no_event_id"),
        ("second", "del_1", "flooded"),
    ]


# case: I16, O6
@pytest.mark.parametrize("reason", Reason)
async def test_a_record_that_no_stranger_sent_is_counted_as_one_that_could_not_be_kept(
    database: Database, reason: Reason
) -> None:
    """What anybody may send is not: it is told by how fast it grows, and by the room it takes."""
    await put(database, (delivery(1), reason))
    async with database.reading() as session:
        found = await health.figures(session, NOW)
        sent_by_anybody = (await quarantine.unproved_bytes(session)).get("default", 0) > 0
    is_an_answer = reason is Reason.OTHER_EVENT_FETCHED  # to whoever asks for an id as a stranger wrote it
    assert found.refused == found.refused_lately == (0 if sent_by_anybody or is_an_answer else 1)


async def test_newest_first_filtered_and_bounded(database: Database) -> None:
    odd, even = Reason.NOT_CONFIRMED, Reason.NOT_JSON
    await put(database, *((delivery(number), even if number % 2 == 0 else odd) for number in range(6)))
    assert [row.delivery_id for row in await newest(database, limit=2)] == ["del_5", "del_4"]
    assert [row.delivery_id for row in await newest(database, reason=even)] == ["del_4", "del_2", "del_0"]
    assert await newest(database, application="second") == []
    async with database.reading() as session:
        assert await quarantine.count(session) == 6


# case: I10, G13
async def test_what_is_kept_may_be_called_anything(database: Database) -> None:
    """A record that nobody understands must not stop the worker that wants to put it aside."""
    odd = replace(
        delivery(1, application="a\0pp" * 50, event_id="evt_\0" + "x" * 400),
        id="topic/0/\0" + "9" * 200,
        raw=b"\x00\xff\xfe",
        headers={"x": "a\0b", "ü": "ö" * 10_000},
    )
    await put(database, (odd, Reason.NOT_UNDERSTOOD))
    [kept] = await newest(database)
    async with database.reading() as session:
        row = await quarantine.get(session, kept.id)
    assert row is not None
    assert row.raw == odd.raw
    names = (kept.application, kept.delivery_id, kept.event_id or "")
    assert [len(name) for name in names] == [64, 100, 255]
    assert "\0" not in "".join(names) + kept.headers


async def test_rows_of_before_there_were_codes_are_found_by_code(database: Database) -> None:
    """An older `serve` wrote a sentence; the row stays as it is, and is read as its code."""
    await put(database, (delivery(1), Reason.NOT_JSON), (delivery(2), Reason.NOT_AN_OBJECT))
    old = "the body is not JSON"
    async with database.transaction() as session:
        where = QuarantineRow.__table__.c.delivery_id == "del_2"
        await session.execute(update(QuarantineRow).where(where).values(reason=old))
    rows = await newest(database, reason=Reason.NOT_JSON)
    assert [(row.delivery_id, reason_of(row.reason)) for row in rows] == [
        ("del_2", Reason.NOT_JSON),
        ("del_1", Reason.NOT_JSON),
    ]
    assert await newest(database, reason=Reason.NOT_AN_OBJECT) == []


# case: I15
async def test_what_is_put_anew_is_not_dropped_by_who_saw_it_before(database: Database) -> None:
    """A retry publishes, and drops then: between the two the delivery may be put back under its own id."""
    await put(database, (delivery(1), Reason.NO_EVENT_ID), (delivery(2), Reason.NO_EVENT_ID))
    seen = await newest(database)
    again = replace(delivery(1), received_at=NOW + timedelta(seconds=9), event_id="evt_1")
    async with database.transaction() as session:
        await quarantine.put(session, [(again, Reason.FLOODED)], NOW)
    async with database.transaction() as session:
        gone = await quarantine.drop(session, seen)
    [kept] = await newest(database)
    assert (kept.delivery_id, kept.reason, kept.event_id) == ("del_1", "flooded", "evt_1")
    assert gone == {row.id for row in seen} - {kept.id}
    async with database.transaction() as session:
        assert await quarantine.drop(session, [kept]) == {kept.id}


async def test_nothing_is_fine(database: Database) -> None:
    await put(database)
    assert await newest(database) == []
