"""Whatever keeps Kafka from answering, `status` names it truly by itself, also when no process is there to say it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from consumer.app import log_parts
from consumer.settings import Role, load_settings
from tests.faults.cluster import Cluster, cluster
from tests.faults.rows.kafka import OF_KAFKA
from tests.faults.scene import Fault
from tests.support.desk import Desk

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(400)]

WITHIN_S = 60.0
BY_ITSELF = (
    "dead",
    "refused",
    "hung",
    "slow (8 s an answer)",
    "with another password",
    "by a mechanism it does not take",
    "with another certificate",
)
"""The others are what a process is refused, or want the whole deployment: `make faults`."""


class Alone:
    """A scene without processes: the cluster, and the settings that somebody looks with."""

    def __init__(self, brokers: Cluster, folder: Path) -> None:
        self.brokers = brokers
        self.found = self
        self.folder = folder
        self.environ = {
            "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{folder}/consumer.db",
            "CONSUMER_BROKER_URL": f"kafka://127.0.0.1:{brokers.proxy.port}",
            **brokers.environ(),
        }
        self._before = dict(self.environ)

    def pay(self, count: int = 1) -> None:
        """Nobody is there to ship."""

    async def restart(self, *_: str, **settings: str) -> None:
        self.environ |= settings

    async def as_before(self, *_: str) -> None:
        self.environ = dict(self._before)


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Alone]:
    async with cluster(tmp_path / "kafka") as brokers:
        scene = Alone(brokers, tmp_path)
        desk = Desk(scene.environ)
        assert (await asyncio.to_thread(desk.call, "db", "upgrade")).returncode == 0
        settings = load_settings({**scene.environ, "SVC_BASE_URL": "http://127.0.0.1:9"}, Role.OPERATE)
        broker = log_parts.open_log(settings)
        await broker.start()
        await broker.ensure_topics(log_parts.topics(settings))
        await broker.stop()
        yield scene


# case: O2
async def test_by_name(alone: Alone) -> None:
    told = {fault.what: await _look(fault, alone) for fault in OF_KAFKA if fault.what in BY_ITSELF}
    assert len(told) == len(BY_ITSELF)
    assert {what: found for what, found in told.items() if not found["is_true"]} == {}
    assert max(found["s"] for found in told.values()) < WITHIN_S


async def _look(fault: Fault, alone: Any) -> dict[str, Any]:
    await fault.strike(alone)
    began = time.monotonic()
    try:
        codes = await _codes(alone)
    finally:
        seconds = time.monotonic() - began
        await fault.cure(alone)
    print(f"{fault.what:50} {seconds:5.1f} {sorted(codes)}")
    return {"is_true": bool(codes & fault.codes), "codes": codes, "s": seconds}


async def _codes(alone: Alone) -> set[str]:
    done = await asyncio.to_thread(Desk(alone.environ).call, "status", "--json")
    return {one["code"] for one in json.loads(done.stdout)["findings"]}
