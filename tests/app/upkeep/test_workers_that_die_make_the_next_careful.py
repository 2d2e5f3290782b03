"""Workers that die again and again, and do not say why, make the next one go carefully; a stop, one death, or a reason
that was said do not."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import cast

import pytest

from consumer.app.upkeep.care import CARE_FOR_S, Care, workers_die
from consumer.clock import DrivenClock
from consumer.console.alarms.lives import GONE_AFTER
from consumer.ledger import Database, processes
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.processes import DIED, Pulse
from consumer.work.worker import Worker
from tests.support.ports import eventually

LIFE = timedelta(seconds=5)


async def lived(database: Database, name: str, ago: timedelta, *, role: str = "work", said: str | None = None) -> None:
    """A process that was heard last `ago`."""
    async with database.transaction() as session:
        now = await shared_time(session) - ago
        began = now - LIFE
        pulse = Pulse(process=name, role=role, host="shop", pid=1, version="1", started_at=began, ready=True,
                      since=began, said={DIED: said} if said else {})  # fmt: skip
        await processes.beat(session, [pulse], now)


async def test_two_deaths_are_enough(database: Database) -> None:
    await lived(database, "first", 4 * GONE_AFTER)
    assert not await workers_die(database)
    await lived(database, "second", 2 * GONE_AFTER)
    assert await workers_die(database)
    await lived(database, "third", timedelta(0))
    assert await workers_die(database), "it has not lived for long"


@pytest.mark.parametrize(("role", "said"), [("sync", None), ("work", "schema_outdated: run db upgrade")])
async def test_another_role_or_a_reason_is_none_of_a_runs(database: Database, role: str, said: str | None) -> None:
    await lived(database, "first", 4 * GONE_AFTER, role=role, said=said)
    await lived(database, "second", 2 * GONE_AFTER, role=role, said=said)
    assert not await workers_die(database)


async def test_a_stop_is_no_death(database: Database) -> None:
    for name, ago in (("first", 4 * GONE_AFTER), ("second", 2 * GONE_AFTER)):
        await lived(database, name, ago)
        async with database.transaction() as session:
            await processes.ended(session, name, await shared_time(session))
    assert not await workers_die(database)


class Told:
    """A worker, as far as it is told how to go."""

    def __init__(self) -> None:
        self.ways: list[bool] = []

    def go_carefully(self, is_careful: bool) -> None:
        self.ways.append(is_careful)


async def test_it_is_known_before_the_worker_begins_and_over_after_a_minute(database: Database) -> None:
    """One run at a time is slow; a worker that lives has nothing to find out."""
    await lived(database, "first", 4 * GONE_AFTER)
    await lived(database, "second", 2 * GONE_AFTER)
    told, clock = Told(), DrivenClock()
    care = Care(cast("Worker", told), database, clock)
    await care.look()
    assert told.ways == [True]
    caring = asyncio.create_task(care.run(asyncio.Event()))
    await eventually(lambda: clock.sleepers == 1)
    clock.advance(CARE_FOR_S)
    await asyncio.wait_for(caring, 20)
    assert told.ways[-1] is False
