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
