"""`status` shows a role as ready moments after it is: who begins says how it stands every half second."""

from __future__ import annotations

import asyncio

import pytest

from consumer.app import heartbeat
from consumer.app.heartbeat import Heartbeat
from consumer.clock import SystemClock
from consumer.ledger import Database, processes
from consumer.telemetry.internal import Readiness
from consumer.telemetry.metrics import Metrics
from tests.support.ports import eventually


async def test_ready_is_told_before_the_next_beat(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_EVERY_S", 3600.0)
    monkeypatch.setattr(heartbeat, "FIRST_BEAT_S", 0.05)
    clock, stop = SystemClock(), asyncio.Event()
    readiness = Readiness(clock)
    heart = Heartbeat(database_url, readiness=readiness, metrics=Metrics(), clock=clock, process="new")
    heart.roles.add("work")
    task = asyncio.create_task(heart.run(stop))

    async def told() -> list[bool]:
        async with database.reading() as session:
            return [one.ready for one in await processes.listed(session)]

    async def begins() -> bool:
        return await told() == [False]

    async def is_ready() -> bool:
        return await told() == [True]

    await eventually(begins, within_s=20)
    readiness.started()
    await eventually(is_ready, within_s=20)
    stop.set()
    await task
