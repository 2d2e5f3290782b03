"""What was emitted to come later is withdrawn: it never comes, unless it is on its way already."""

from __future__ import annotations

from datetime import datetime

from consumer.ledger import Database
from consumer.ledger.handling import outbox
from tests.contract.ledger.facts import NOW, later, undone
from tests.contract.ledger.handling.test_outbox_goes_out_in_order import due, emitted, ids, mark, put


async def withdraw(database: Database, *numbers: int, application: str = "default", at: datetime = NOW) -> None:
    async with database.transaction() as session:
        await outbox.withdraw(session, [(application, f"drv_{number}") for number in numbers], at)


async def test_what_is_withdrawn_never_comes_and_its_neighbours_do(database: Database) -> None:
    await put(database, *(emitted(number, not_before=later(60)) for number in range(600)))
    await put(database, emitted(1, not_before=later(60), application="another"))
    await withdraw(database, *range(1, 600))
    assert [(row.application, row.event_id) for row in await due(database, later(3600))] == [
        ("default", "drv_0"),
        ("another", "drv_1"),
    ]


async def test_what_is_due_or_published_comes_all_the_same(database: Database) -> None:
    await put(database, emitted(1), emitted(2, not_before=later(60)), emitted(3, not_before=later(600)))
    await mark(database, [row for row in await due(database, later(3600)) if row.event_id == "drv_3"])
    await withdraw(database, 1, 2, 3, at=later(60))
    assert ids(await due(database, later(60))) == ["drv_1", "drv_2"]
    async with database.reading() as session:
        assert ("default", "drv_3") in [event for _, event, sent in await outbox.below(session, 99, 9) if sent]


async def test_what_takes_the_number_of_a_withdrawn_one_still_comes(database: Database) -> None:
    """SQLite gives it away again; the relay, which read the timer before, marks what it published."""
    await put(database, emitted(1, not_before=later(60)))
    read = await due(database, later(60))
    await withdraw(database, 1)
    await put(database, emitted(2))
    await mark(database, read)
    assert ids(await due(database)) == ["drv_2"]


async def test_what_is_emitted_once_more_comes(database: Database) -> None:
    await put(database, emitted(1, not_before=later(60)))
    await withdraw(database, 1)
    await put(database, emitted(1, not_before=later(90)))
    assert ids(await due(database, later(60))) == []
    assert ids(await due(database, later(90))) == ["drv_1"]


async def test_a_transaction_that_fails_withdraws_nothing(database: Database) -> None:
    await put(database, emitted(1, not_before=later(60)))
    await undone(database, lambda session: outbox.withdraw(session, [("default", "drv_1")], NOW))
    assert ids(await due(database, later(60))) == ["drv_1"]
