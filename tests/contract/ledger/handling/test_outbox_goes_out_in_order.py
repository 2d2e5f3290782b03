"""Outbox: derived events in the order they were emitted, each once, none before its time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson
import pytest
from sqlalchemy import Row

from consumer.ledger import Database
from consumer.ledger.handling import outbox
from consumer.ledger.handling.outbox import Emitted
from consumer.plugin import Emission
from tests.contract.ledger.facts import NOW, event, later, undone


def emitted(
    number: int,
    *,
    not_before: datetime | None = None,
    application: str = "default",
    plan: str | None = None,
    **data: Any,
) -> Emitted:
    emission = Emission(
        id=f"drv_{number}", type="fulfilment.requested", key=f"order:{number % 3}", data=data, not_before=not_before
    )
    return Emitted(emission=emission, cause=event(number, application=application), handler="shop:project", plan=plan)


async def put(database: Database, *given: Emitted) -> None:
    async with database.transaction() as session:
        await outbox.put(session, given, NOW)


async def due(database: Database, at: datetime = NOW, limit: int = 1000) -> list[Row[Any]]:
    async with database.reading() as session:
        return list(await outbox.due(session, at, limit))


async def mark(database: Database, rows: list[Row[Any]]) -> None:
    async with database.transaction() as session:
        await outbox.mark_published(session, rows, later(1))


def ids(rows: list[Row[Any]]) -> list[str]:
    return [row.event_id for row in rows]


@pytest.mark.parametrize("count", [3, 500])
async def test_the_order_of_emission_is_the_order_of_publishing(database: Database, count: int) -> None:
    numbers = [(number * 7919) % 100_003 for number in range(count)]
    await put(database, *(emitted(number) for number in numbers))
    await put(database, emitted(200_000), emitted(199_999))
    assert ids(await due(database)) == [f"drv_{number}" for number in [*numbers, 200_000, 199_999]]


async def test_no_more_than_asked_for_oldest_first(database: Database) -> None:
    await put(database, *(emitted(number) for number in range(10)))
    first = await due(database, limit=4)
    assert ids(first) == ["drv_0", "drv_1", "drv_2", "drv_3"]
    await mark(database, first)
    assert ids(await due(database, limit=4)) == ["drv_4", "drv_5", "drv_6", "drv_7"]


async def test_nothing_goes_out_before_its_time(database: Database) -> None:
    await put(database, emitted(1, not_before=later(60)), emitted(2))
    assert ids(await due(database, later(59.999999))) == ["drv_2"]
    assert ids(await due(database, later(60))) == ["drv_1", "drv_2"]


async def test_whose_clock_is_ahead_is_not_overtaken(database: Database) -> None:
    """Two workers decide about one customer one after the other; the first one's clock is 1.5 s ahead."""
    async with database.transaction() as session:
        await outbox.put(session, [emitted(3), emitted(6, not_before=later(2))], later(1.5))
    async with database.transaction() as session:
        at_hand = replace(emitted(9), by_log=False)
        assert await outbox.put(session, [at_hand], later(0.2)) == [], "one of its key is on its way"
    assert ids(await due(database, later(0.3))) == ["drv_3", "drv_9"]
    assert ids(await due(database, later(2))) == ["drv_3", "drv_6", "drv_9"]


@pytest.mark.parametrize("limit", [2, 100])
async def test_those_held_are_passed_over_however_many_they_are(
    database: Database, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    # case: I30, G5
    monkeypatch.setattr(outbox, "WINDOW", 2)
    await put(database, *(emitted(3 * number) for number in range(7)))
    await put(database, emitted(5, not_before=later(-1)), emitted(4), emitted(30, application="second"), emitted(7))
    async with database.reading() as session:
        rows = list(await outbox.due(session, NOW, limit, held={("default", "order:0")}))
        none = await outbox.due(
            session, NOW, limit, held={(a, f"order:{n}") for a in ("default", "second") for n in range(3)}
        )
    assert ids(rows) == ["drv_5", "drv_4", "drv_30", "drv_7"][:limit]
    assert not none


# case: G2
async def test_the_same_derived_event_is_stored_once_and_the_first_stays(database: Database) -> None:
    await put(database, emitted(1, amount="25.00"), emitted(1, amount="99.00"))
    await put(database, emitted(1, amount="1.00"))
    found = await due(database)
    assert [orjson.loads(row.data) for row in found] == [{"amount": "25.00"}]


# case: G2, G10
async def test_what_was_published_is_not_published_again_when_it_is_emitted_again(database: Database) -> None:
    await put(database, emitted(1))
    await mark(database, await due(database))
    await put(database, emitted(1))
    assert await due(database) == []


# case: G8
async def test_the_same_id_in_two_applications_is_two_derived_events(database: Database) -> None:
    await put(database, emitted(1), emitted(1, application="second"))
    assert [row.application for row in await due(database)] == ["default", "second"]


async def test_marking_twice_and_marking_nothing_is_harmless(database: Database) -> None:
    await put(database, emitted(1), emitted(2))
    rows = await due(database, limit=1)
    await mark(database, rows)
    await mark(database, rows)
    await mark(database, [])
    assert ids(await due(database)) == ["drv_2"]


async def test_waiting_counts_what_is_due_and_since_when(database: Database) -> None:
    async def waiting(at: datetime) -> tuple[int, datetime | None]:
        async with database.reading() as session:
            return await outbox.waiting(session, at)

    assert await waiting(NOW) == (0, None)
    await put(database, emitted(1), emitted(2, not_before=later(-5)), emitted(3, not_before=later(60)))
    assert await waiting(NOW) == (2, later(-5))
    await mark(database, await due(database))
    assert await waiting(NOW) == (0, None)
    assert await waiting(later(61)) == (1, later(60))


async def test_a_row_says_where_it_came_from(database: Database) -> None:
    await put(database, emitted(1, plan="plan-1", name="Größe"))
    row = (await due(database))[0]
    assert (row.type, row.key, row.cause, row.handler, row.plan) == (
        "fulfilment.requested", "order:1", "evt_1", "shop:project", "plan-1",
    )  # fmt: skip
    assert (orjson.loads(row.data), row.created_at, row.published_at) == ({"name": "Größe"}, NOW, None)


async def test_an_emission_goes_with_the_transaction_that_made_it(database: Database) -> None:
    await undone(database, lambda session: outbox.put(session, [emitted(1)], NOW))
    assert await due(database) == []
