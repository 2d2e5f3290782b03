"""Whatever is wrong with the files of log and ledger, `status` names it truly by itself, and within a bounded time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from consumer.app import log_parts
from consumer.broker import open_broker
from consumer.ledger import Database, processes
from consumer.ledger.engine import schema
from consumer.ledger.processes import Pulse
from consumer.settings import Role, load_settings
from tests.faults.rows.files import OF_THE_LEDGER_FILE, OF_THE_LOG_FILE
from tests.faults.scene import Fault, small_disk
from tests.support.desk import Desk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WITHIN_S = 60.0
OF_PROCESSES = frozenset(
    {
        "log locked",
        "log on a full disk",
        "log removed",
        "log replaced",
        "log put back from a backup",
        "ledger on a full disk",
    }
)
"""Only who writes is refused, or remembers what was there: `make faults`."""
BY_ITSELF = [one for one in (*OF_THE_LOG_FILE, *OF_THE_LEDGER_FILE) if one.name not in OF_PROCESSES]


class Alone:
    """A scene without processes: the files, each on a disk of its own, and one process that was heard a minute ago."""

    def __init__(self, folder: Path) -> None:
        self.log, self.ledger = folder / "log" / "log.db", folder / "ledger" / "consumer.db"
        self.kept: dict[str, Any] = {}
        self.environ = {
            "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{self.ledger}",
            "CONSUMER_BROKER_URL": f"embedded:{self.log}",
        }

    async def stop(self, *_: str) -> None:
        """Nobody runs."""

    async def start(self, *_: str) -> None:
        """Nobody runs."""

    def pay(self, count: int = 1) -> None:
        """Nobody is there to ship."""


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Alone]:
    with small_disk(tmp_path / "log"), small_disk(tmp_path / "ledger"):
        scene = Alone(tmp_path)
        database = Database(scene.environ["CONSUMER_DATABASE_URL"])
        await schema.upgrade(database)
        ago = datetime.now(UTC) - timedelta(minutes=1)
        pulse = Pulse(process="one", role="work", host="h", pid=1, version="1", started_at=ago, ready=True, since=ago)
        async with database.transaction() as session:
            await processes.beat(session, [pulse], ago)
        await database.stop()
        broker = open_broker(scene.environ["CONSUMER_BROKER_URL"])
        await broker.start()
        await broker.ensure_topics(log_parts.topics(load_settings(scene.environ, Role.OPERATE)))
        await broker.stop()
        yield scene


# case: O2, O9
@pytest.mark.parametrize("fault", BY_ITSELF, ids=lambda one: str(one.name))
async def test_by_name(alone: Any, fault: Fault) -> None:
    await fault.strike(alone)
    began = time.monotonic()
    try:
        done = await asyncio.to_thread(Desk(alone.environ).call, "status", "--json")
    finally:
        await fault.cure(alone)
    assert time.monotonic() - began < WITHIN_S
    codes = {one["code"] for one in json.loads(done.stdout)["findings"]}
    assert fault.codes & codes, done.stdout
