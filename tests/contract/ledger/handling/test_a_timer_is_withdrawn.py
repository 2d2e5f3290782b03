"""What was emitted to come later is withdrawn: it never comes, unless it is on its way already."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from structlog.testing import capture_logs

from consumer.ledger import Database
from consumer.ledger.handling import outbox
from consumer.work.unit_of_work import UnitOfWork
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


# --- armed anew -------------------------------------------------------------------------------------------------


class Armed:
    """A handler's run that withdraws the timer and arms it anew, under one `once`, in a transaction of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def anew(
        self, at: datetime, *, plan: str | None = None, withdrawn: bool = True, by: datetime = NOW
    ) -> list[Any]:
        """Returns what was told of it."""
        unit = UnitOfWork(by)
        if withdrawn:
            unit.withdrawn = {("default", "drv_1")}
        with capture_logs() as logs:
            async with self._database.transaction() as session:
                await unit.emit(session, [replace(emitted(1, not_before=at), plan=plan)])
        return [(line["event"], line["event_id"]) for line in logs]


async def test_a_timer_that_is_armed_anew_when_it_has_come_is_told(database: Database) -> None:
    armed, lost = Armed(database), [("timer_is_spent", "drv_1")]
    assert await armed.anew(later(60)) == []
    assert await armed.anew(later(90)) == [], "it had not come"
    assert ids(await due(database, later(60))) == []
    assert await armed.anew(later(900), by=later(90)) == lost, "it is due"
    await mark(database, await due(database, later(90)))
    assert await armed.anew(later(900), by=later(120)) == lost, "it has come"
    assert await armed.anew(later(900), by=later(120), plan="a-replay") == []
    assert await armed.anew(later(100), by=later(120)) == [], "it is no timer any more"
    assert await armed.anew(later(900), by=later(120), withdrawn=False) == [], "it is to come once"
    assert ids(await due(database, later(3600))) == []
