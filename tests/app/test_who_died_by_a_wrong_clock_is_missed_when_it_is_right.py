"""The ledger's clock was ahead, and is right again: who died meanwhile is missed, and who lives is seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.app import heartbeat
from consumer.app.heartbeat import Heartbeat
from consumer.cli.repairing.rebuild import require_rest
from consumer.clock import SystemClock
from consumer.console.alarms.lives import GONE_AFTER, is_living, loops
from consumer.ledger import Database, processes
from consumer.ledger.engine.database_time import shared_time
from consumer.telemetry.internal import Readiness
from consumer.telemetry.metrics import Metrics

AHEAD = timedelta(days=1)


def beating(url: str, role: str, name: str) -> Heartbeat:
    clock = SystemClock()
    heart = Heartbeat(url, readiness=Readiness(clock), metrics=Metrics(), clock=clock, process=name)
    heart.roles.add(role)
    return heart


# case: O5
async def test_who_died_is_missed_and_who_lives_is_seen(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(session: AsyncSession) -> datetime:
        return await shared_time(session) + AHEAD

    hearts = [beating(database_url, "work", name) for name in ("dead", "died-too", "lives")]
    monkeypatch.setattr(heartbeat, "shared_time", wrong)
    for heart in [*hearts, *hearts]:
        await heart.beat()
    async with database.reading() as session:
        now = await shared_time(session)
        assert not any(is_living(one, now) for one in await processes.listed(session))
    await require_rest(database)
    monkeypatch.undo()
    await hearts[2].beat()
    async with database.reading() as session:
        now, found = await shared_time(session), await processes.listed(session)
    assert {one.process for one in found} == {"dead", "died-too", "lives"}
    assert all(one.started_at <= one.seen_at <= now and one.since <= now for one in found)
    later = now + GONE_AFTER + timedelta(seconds=1)
    found = [replace(one, seen_at=later) if one.process == "lives" else one for one in found]
    assert [one.process for one in found if is_living(one, later)] == ["lives"]
    assert not loops(found, later), "they did not die one after the other"
    for heart in hearts:
        await heart.stop()
