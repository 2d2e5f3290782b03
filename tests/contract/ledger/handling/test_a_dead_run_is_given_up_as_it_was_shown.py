"""What an operator does about a dead run is about the death that was shown: one that was let try again meanwhile, and
died of something else, may have shipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pytest
from sqlalchemy import Table, select, update

from consumer.ledger import Database
from consumer.ledger.handling import dead, events, runs
from consumer.ledger.handling.dead import DeadFilter, DeadRun
from consumer.ledger.tables import RunRow, RunStatus
from tests.contract.ledger import facts

_RUNS: Table = RunRow.__table__


async def shown(database: Database) -> Sequence[DeadRun]:
    async with database.reading() as session:
        return await dead.search(session, DeadFilter())


async def dies(database: Database, event_id: str, at: datetime) -> None:
    """It dies of an answer that was lost."""
    async with database.transaction() as session:
        lost = {"status": RunStatus.DEAD.value, "reason": "answer lost", "updated_at": at}
        await session.execute(update(_RUNS).where(_RUNS.c.event_id == event_id).values(lost))


async def reasons(database: Database) -> list[tuple[str, str | None]]:
    async with database.reading() as session:
        found = await session.execute(select(_RUNS.c.status, _RUNS.c.reason).order_by(_RUNS.c.event_id))
    return [(status, reason) for status, reason in found]


# case: R12
@pytest.mark.parametrize("verb", ["discard", "redrive"])
async def test_another_death_is_left_alone(database: Database, verb: str) -> None:
    act = {"discard": dead.discard, "redrive": dead.redrive}[verb]
    died = [
        replace(facts.run(number, status=RunStatus.DEAD, blocking=False), reason="no stock") for number in (1, 2, 3)
    ]
    async with database.transaction() as session:
        await events.record(session, [facts.event(number) for number in (1, 2, 3)], facts.NOW)
        await runs.add(session, died, facts.NOW)
    seen = await shown(database)
    async with database.transaction() as session:
        assert await dead.redrive(session, seen[1:2], by="bob", reason="mended", now=facts.later(1)) == 1
    await dies(database, seen[1].event_id, facts.later(2))
    async with database.transaction() as session:
        assert await act(session, seen, by="ann", reason="no stock, money back", now=facts.later(3)) == 2
    [_, other, _] = await reasons(database)
    assert other == ("dead", "answer lost")
    async with database.transaction() as session:
        assert await act(session, await shown(database), by="ann", reason="it did not ship", now=facts.later(4)) == 1


# case: R12
async def test_a_discard_that_is_another_one_by_now_is_not_taken_back_and_parks_nothing(database: Database) -> None:
    """Bob took it back, and discarded it anew; what comes behind it waits for nothing."""
    head, behind = (replace(facts.run(number, status=RunStatus.DEAD), key="one") for number in (1, 2))
    async with database.transaction() as session:
        await events.record(session, [facts.event(number) for number in (1, 2)], facts.NOW)
        await runs.add(session, [head, replace(behind, status=RunStatus.PARKED)], facts.NOW)
        await dead.discard(session, await dead.search(session, DeadFilter()), by="ann", reason="x", now=facts.later(1))
    async with database.reading() as session:
        seen = await dead.search(session, DeadFilter(discarded=True))
    async with database.transaction() as session:
        assert await dead.restore(session, seen, by="bob", reason="x", now=facts.later(2)) == 1
        await dead.discard(session, await dead.search(session, DeadFilter()), by="bob", reason="y", now=facts.later(3))
        due = {"status": RunStatus.RETRYING.value, "next_at": facts.later(3)}
        await session.execute(update(_RUNS).where(_RUNS.c.event_id == behind.event_id).values(due))
    async with database.transaction() as session:
        assert await dead.restore(session, seen, by="ann", reason="x", now=facts.later(4)) == 0
    assert [status for status, _ in await reasons(database)] == ["skipped", "retrying"]
