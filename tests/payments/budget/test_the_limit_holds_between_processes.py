"""Several processes on one ledger: the limit holds between them, in real time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from consumer.ledger import Database
from consumer.ledger.engine import schema
from tests.payments.budget.limiters import most_in_a_window

pytestmark = pytest.mark.slow

POD = """
import asyncio, sys, time
from consumer.clock import SystemClock
from consumer.ledger import Database
from consumer.ledger.reading.budgets import LedgerBudgetStore
from consumer.payments import Budget, CallKind, Limit, Limits, Priority, Scope

class Noting:
    def __init__(self, store):
        self.store = store

    async def update(self, names, step):
        granted = []

        def noting(texts, now):
            changes, result = step(texts, now)
            granted[:] = [now] if changes else []
            return changes, result

        result = await self.store.update(names, noting)
        if granted:
            print(repr(granted[0]), flush=True)
        return result

async def main(url, until):
    database = Database(url)
    clock = SystemClock()
    limits = Limits(ip=Limit(requests=50, window_s=2))
    budget = Budget(Noting(LedgerBudgetStore(database, clock)), Scope(ip="one", application="a"), clock, limits)
    while time.time() < until:
        await budget.acquire(CallKind.READ, Priority.LIVE, max_wait_s=10)
    await database.stop()

asyncio.run(main(sys.argv[1], time.time() + float(sys.argv[2])))  # from when it has started
"""
"""Prints the store's time of each place it was granted."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite+aiosqlite:///{tmp_path}/ledger.db"


def taken(url: str, seconds: float) -> list[list[float]]:
    """When each of three processes got a place, asking as fast as it can."""
    pods = [
        subprocess.Popen([sys.executable, "-c", POD, url, str(seconds)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    found = [[float(line) for line in pod.communicate(timeout=60)[0].split()] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0, 0]
    return found


async def test_three_processes_never_take_more_than_the_limit(url: str) -> None:
    # case: C16
    database = Database(url)
    await schema.upgrade(database)
    await database.stop()
    per_pod = await asyncio.to_thread(taken, url, 5.0)
    times = sorted(at for found in per_pod for at in found)
    assert most_in_a_window(times, 2) <= 50
    assert len(times) >= 60, "more than one window was used"
    assert all(found for found in per_pod), "nobody is starved"
