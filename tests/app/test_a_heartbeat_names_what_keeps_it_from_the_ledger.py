"""A process whose ledger somebody has locked says so on `/readyz`, as `status` and `doctor` do."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from consumer.app import heartbeat
from consumer.app.heartbeat import Heartbeat
from consumer.clock import SystemClock
from consumer.errors import LedgerLocked
from consumer.ledger import Database
from consumer.telemetry.internal import Readiness
from consumer.telemetry.metrics import Metrics

LOCKS = {
    "sqlite": "DELETE FROM processes WHERE pid = -1",
    "postgresql": "LOCK TABLE processes IN ACCESS EXCLUSIVE MODE",
}


# case: O5
async def test_a_locked_ledger_is_not_called_one_that_is_away(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "LIMIT_S", 1.0)
    clock = SystemClock()
    heart = Heartbeat(database_url, readiness=Readiness(clock), metrics=Metrics(), clock=clock, process="front")
    heart.roles.add("serve")
    await heart.beat()
    assert await heart.check()
    async with database.engine.connect() as somebody:
        await somebody.execute(text(LOCKS[database.dialect]))
        await heart.beat()
        with pytest.raises(LedgerLocked):
            await heart.check()
        await somebody.rollback()
    await heart.beat()
    assert await heart.check()
    await heart.stop()
