"""A backlog is worked off as quickly behind a long past as in a fresh ledger, whatever the statistics say.

Both ledgers are worked at once, so that a busy machine slows both: what counts is how far one is when the other ends.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from consumer.ledger import Database
from consumer.ledger.handling import events, lanes, queue, runs
from consumer.ledger.handling.runs import Finish
from consumer.ledger.tables import RunStatus
from tests.support.ledger.history import AT, Past, finished, keep_statistics, take_statistics, waiting
from tests.support.postgres import copy_database

HANDLER = "test:ship"
FINISHED = 300_000
WAITING = 15_000
PER_ORDER = 3
AT_ONCE = 100
LOOK_EVERY = 10


@pytest.fixture
async def fresh(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> AsyncIterator[Database]:
    """A second ledger of the same kind."""
    if database.dialect == "sqlite":
        shutil.copyfile(request.getfixturevalue("sqlite_template"), tmp_path / "fresh.db")
        url = f"sqlite+aiosqlite:///{tmp_path}/fresh.db"
    else:
        base, template = request.getfixturevalue("postgres_base"), request.getfixturevalue("postgres_template")
        url = await asyncio.to_thread(copy_database, base, template)
    found = Database(url)
    yield found
    await found.stop()


class Effort:
    """One worker's rounds on one ledger, as the dispatcher and the housekeeping make them, without handlers."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.done = 0
        self._now = AT
        self._rounds = 0

    async def work(self) -> None:
        while self.done < WAITING:
            self._now += timedelta(seconds=1)
            self._rounds += 1
            assert await self._round(), f"nothing to do after {self.done}"

    async def _round(self) -> int:
        async with self.database.reading() as session:
            assert (await queue.next_due(session, self._now)).keys() == {HANDLER}
            if self._rounds % LOOK_EVERY == 0:
                assert not (await lanes.stranded(session)).stranded
        async with self.database.transaction() as session:
            claimed = await runs.claim(session, handler=HANDLER, worker="one", limit=AT_ONCE, now=self._now, lease_s=15)
            assert len(await events.load(session, [(run.application, run.event_id) for run in claimed])) == len(claimed)
        async with self.database.transaction() as session:
            ends = [Finish(run=run, status=RunStatus.SUCCEEDED, blocking=False, attempts=1) for run in claimed]
            await runs.finish(session, ends, worker="one", now=self._now)
        self.done += len(claimed)
        return len(claimed)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("statistics", ["of an empty ledger", "of a quiet ledger"])
async def test_a_long_past_costs_no_more_than_half_the_rate(
    database: Database, fresh: Database, statistics: str
) -> None:
    await keep_statistics(database)
    if statistics == "of an empty ledger":
        await take_statistics(database)
    await finished(database, Past(first=3, last=FINISHED + 2, handler=HANDLER))
    if statistics == "of a quiet ledger":
        await take_statistics(database)
    backlog = Past(first=FINISHED + 3, last=FINISHED + WAITING + 2, handler=HANDLER, per_order=PER_ORDER)
    for one in (database, fresh):
        await waiting(one, backlog)
    old, new = Effort(database), Effort(fresh)
    slower = asyncio.create_task(old.work())
    await asyncio.wait([asyncio.create_task(new.work()), slower], return_when=asyncio.FIRST_COMPLETED)
    assert max(new.done, old.done) == WAITING
    assert old.done >= WAITING / 2, f"{old.done} of {WAITING} when the fresh ledger was through"
    await slower
    async with database.reading() as session:
        assert await queue.next_due(session, AT + timedelta(days=1)) == {}
