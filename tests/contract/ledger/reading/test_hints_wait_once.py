"""Hints: one per (application, event id), the least denied first, until they are confirmed or given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from consumer.events import Delivery
from consumer.ledger import Database
from consumer.ledger.reading import hints
from consumer.ledger.tables import HintRow
from tests.contract.ledger.facts import NOW, delivery, later


async def keep(database: Database, *given: Delivery, at_s: float = 0) -> None:
    async with database.transaction() as session:
        await hints.keep(session, given, later(at_s))


async def due(
    database: Database, at_s: float = 0, *, limit: int = 100, application: str = "default"
) -> Sequence[HintRow]:
    async with database.reading() as session:
        ids = [event_id for event_id, _ in await hints.due_ids(session, application, later(at_s), limit)]
        rows = {row.event_id: row for row in await hints.of_events(session, application, ids)}
    return [rows[event_id] for event_id in ids]


# case: I15
async def test_later_deliveries_of_the_same_event_join_the_first(database: Database) -> None:
    await keep(database, delivery(1), delivery(2), delivery(3, event_id="evt_3"))
    await keep(database, delivery(4))
    assert {row.event_id: row.delivery_id for row in await due(database)} == {"evt_1": "del_1", "evt_3": "del_3"}
    async with database.reading() as session:
        assert await hints.count(session) == 2


async def test_none_was_received_later_than_it_is_kept(database: Database) -> None:
    """`serve` may have a clock that is ahead, and no ledger that would tell it so."""
    ahead, before = (replace(delivery(1), received_at=later(s), event_id=f"evt_{s}") for s in (3600, -3600))
    await keep(database, ahead, before)
    assert {row.event_id: row.received_at for row in await due(database)} == {
        "evt_3600": later(0), "evt_-3600": later(-3600)
    }  # fmt: skip


# case: I15, I17
async def test_a_later_delivery_brings_a_denied_hint_forward_and_takes_its_denial_back(database: Database) -> None:
    await keep(database, delivery(1), delivery(2, event_id="evt_2"), delivery(3, event_id="evt_3"))
    async with database.transaction() as session:
        for _ in range(3):
            await hints.put_off(session, [("default", "evt_1")], later(120), counted=True)
        await hints.put_off(session, [("default", "evt_2")], later(30), counted=False)
        await hints.put_off(session, [("default", "evt_3")], later(4), counted=True)
    for _ in range(2):  # again and again: once
        await keep(database, delivery(4), delivery(5, event_id="evt_2"), delivery(6, event_id="evt_3"), at_s=1)
    await keep(database, delivery(7), at_s=5)
    assert [row.event_id for row in await due(database, 4)] == ["evt_3"]
    found = {row.event_id: (row.attempts, row.next_at, row.delivery_id) for row in await due(database, 6)}
    assert found == {
        "evt_1": (2, later(6), "del_1"),
        "evt_2": (0, later(6), "del_2"),
        "evt_3": (1, later(4), "del_3"),
    }


# case: G8
async def test_applications_are_apart(database: Database) -> None:
    await keep(database, delivery(1), delivery(2, application="second"))
    assert [row.delivery_id for row in await due(database)] == ["del_1"]
    async with database.transaction() as session:
        await hints.drop(session, [("second", "evt_1")])
    assert len(await due(database)) == 1
    assert await due(database, application="second") == []


async def test_a_delivery_without_an_event_id_is_no_hint(database: Database) -> None:
    await keep(database, delivery(1, event_id=None))
    assert await due(database) == []


async def test_the_delivery_comes_back_as_it_came(database: Database) -> None:
    given = delivery(1)
    await keep(database, given)
    assert hints.as_delivery((await due(database))[0]) == given


async def test_a_flood_that_was_denied_waits_behind_fresh_hints(database: Database) -> None:
    await keep(database, *(delivery(number, event_id=f"evt_forged_{number}") for number in range(5)))
    forged = [("default", f"evt_forged_{number}") for number in range(5)]
    async with database.transaction() as session:
        await hints.put_off(session, forged, later(10), counted=True)
    await keep(database, delivery(9, event_id="evt_real"), at_s=11)
    first, second = await due(database, 12, limit=2)
    assert (first.event_id, first.attempts) == ("evt_real", 0)
    assert second.attempts == 1


async def test_a_hint_that_is_put_off_is_not_due_before(database: Database) -> None:
    await keep(database, delivery(1), delivery(2, event_id="evt_2"))
    async with database.transaction() as session:
        await hints.put_off(session, [("default", "evt_1")], later(60), counted=False)
        await hints.put_off(session, [], later(60), counted=True)
    assert [row.event_id for row in await due(database, 59)] == ["evt_2"]
    assert {row.event_id: row.attempts for row in await due(database, 60)} == {"evt_1": 0, "evt_2": 0}


# case: U30, I15
async def test_denied_is_what_the_service_did_not_know_often(database: Database) -> None:
    await keep(database, *(delivery(number, event_id=f"evt_{number}") for number in range(4)))
    async with database.transaction() as session:
        for number in range(4):
            for _ in range(number):
                await hints.put_off(session, [("default", f"evt_{number}")], NOW, counted=True)
    async with database.reading() as session:
        assert await hints.denied(session) == 1  # a service that lists late did not know evt_1 and evt_2 either
        assert (await hints.unasked(session))[0] == 1


async def test_the_ids_alone_tell_the_same(database: Database) -> None:
    await keep(database, *(delivery(number, event_id=f"evt_{number}") for number in range(4)))
    async with database.transaction() as session:
        await hints.put_off(session, [("default", "evt_0")], NOW, counted=True)
    async with database.reading() as session:
        by_id = await hints.due_ids(session, "default", NOW, 100)
        assert by_id[-1] == ("evt_0", 1)
        whole = await hints.of_events(session, "default", [event_id for event_id, _ in by_id])
        assert len(whole) == 4
        assert sorted(by_id) == sorted((row.event_id, row.attempts) for row in whole)
        assert await hints.ids_of(session, "default", ["evt_2", "evt_9"]) == ["evt_2"]
        assert [row.event_id for row in await hints.of_events(session, "default", ["evt_3"])] == ["evt_3"]
        assert await hints.of_events(session, "default", []) == []
