"""Whatever keeps PostgreSQL from reading or writing, `status` names it truly, and within a bounded time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from consumer.ledger import Database, processes
from consumer.ledger.engine import schema
from consumer.ledger.processes import Pulse
from tests.faults.rows.postgres import OF_POSTGRES
from tests.faults.scene import Fault
from tests.faults.scene import fault as a_fault
from tests.faults.server import PostgresServer, postgres
from tests.support.desk import Desk

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(300)]

WITHIN_S = 60.0
BY_ITSELF = ("replaced by an empty one", "on a full disk (53100)")
"""These want the whole deployment: `make faults`."""


class Alone:
    """A scene without processes: the server, and a ledger in which one process was last heard a minute ago."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server

    def pay(self, count: int = 1) -> None:
        """Nobody is there to ship."""


@pytest.fixture
async def alone() -> AsyncIterator[Alone]:
    async with postgres() as server:
        database = Database(server.url)
        await schema.upgrade(database)
        ago = datetime.now(UTC) - timedelta(minutes=1)
        pulse = Pulse(process="one", role="work", host="h", pid=1, version="1", started_at=ago, ready=True, since=ago)
        async with database.transaction() as session:
            await processes.beat(session, [pulse], ago)
        await database.stop()
        yield Alone(server)


# case: O2
# cause: SLOW
async def test_by_name(alone: Alone, tmp_path: Path) -> None:
    told = {}
    for fault in OF_POSTGRES:
        if fault.what not in BY_ITSELF:
            told[fault.what] = await _codes(fault, alone, tmp_path)
    assert {what: found for what, found in told.items() if not found["is_true"]} == {}
    assert max(found["s"] for found in told.values()) < WITHIN_S


async def _codes(fault: Fault, alone: Any, folder: Path) -> dict[str, Any]:
    environ = {
        "CONSUMER_DATABASE_URL": alone.server.url,
        "CONSUMER_BROKER_URL": f"embedded:{folder}/log.db",
        "CONSUMER_EXPECT": "work",
    }
    await fault.strike(alone)
    began = time.monotonic()
    try:
        done = await asyncio.to_thread(Desk(environ).call, "status", "--json")
    finally:
        seconds = time.monotonic() - began
        await fault.cure(alone)
    codes = {one["code"] for one in json.loads(done.stdout)["findings"]}
    print(f"{fault.what:50} {seconds:5.1f} {sorted(codes)}")
    return {"is_true": bool(codes & fault.codes) and "no_work" not in codes, "codes": codes, "s": seconds}


async def test_a_synchronous_replica_that_is_gone_is_named(alone: Alone, tmp_path: Path) -> None:
    """Commits hang, and reading goes on: it was a server that is busy, or a network."""
    gone = a_fault(
        "PostgreSQL", "without its synchronous replica", "ledger_awaits_replica",
        strike=lambda scene: scene.server.say(
            "ALTER SYSTEM SET synchronous_standby_names = 'gone'", "SELECT pg_reload_conf()"
        ),
        cure=lambda scene: scene.server.say(
            "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"
        ),
    )  # fmt: skip
    found = await _codes(gone, alone, tmp_path)
    assert found["is_true"], found
    assert found["s"] < WITHIN_S


async def test_read_only_is_named_where_nobody_ever_ran_and_by_doctor(tmp_path: Path) -> None:
    [fault] = [one for one in OF_POSTGRES if "25006" in one.what]
    async with postgres() as server:
        database = Database(server.url)
        await schema.upgrade(database)
        await database.stop()
        desk = Desk(
            {
                "CONSUMER_DATABASE_URL": server.url,
                "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
                "SVC_BASE_URL": "http://127.0.0.1:9",
                "SVC_APP_ID": "svc_app_x",
                "SVC_APP_SECRET": "svc_sk_live_x",
            }
        )
        nobody: Any = Alone(server)
        await fault.strike(nobody)
        told = json.loads((await asyncio.to_thread(desk.call, "status", "--json")).stdout)
        assert fault.codes & {one["code"] for one in told["findings"]}
        done = await asyncio.to_thread(desk.call, "doctor", "--json")
        assert done.returncode == 1
        checks = {one["name"]: one["text"] for one in json.loads(done.stdout)["checks"]}
        assert checks["database"].startswith("error[ledger_read_only]")
        assert "default: credentials" in checks, "what needs no ledger is checked all the same"
