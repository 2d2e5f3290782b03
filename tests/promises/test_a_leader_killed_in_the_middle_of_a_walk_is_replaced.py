"""The leading `sync` is killed with SIGKILL half way through a walk: the other takes over, and goes on where it was."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from consumer.sync.role import SyncPolicy
from tests.promises.deployment import Deployment, deployment, embedded, started, stopped
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess

ORDERS = 400
LOOK_SLACK_S = 3.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


# case: B10, B26, G5
async def test_on_the_embedded_default(tmp_path: Path) -> None:
    async with deployment(tmp_path, **embedded(tmp_path)) as found:
        await _story(found)


# case: B10, B26, G5
@pytest.mark.kafka
@pytest.mark.postgres
async def test_on_kafka_and_postgresql(tmp_path: Path, kafka_url: str, postgres_url: str) -> None:
    async with deployment(tmp_path, broker_url=kafka_url, database_url=postgres_url) as found:
        await _story(found)


async def _story(found: Deployment) -> None:
    for _ in range(ORDERS):
        found.pay_order()
    found.sandbox.engine.faults.set({"api_slow_s": 0.7})
    work, first, second = found.process("work"), found.process("sync", "sync-1"), found.process("sync", "sync-2")
    async with started(work, first, second):
        leader, waiting = await _leader(found, first, second)
        await eventually(lambda: _walked_pages(found, at_least=2), within_s=40, what="a walk is half way")
        leader.kill()
        killed_at = time.monotonic()
        resume, holder = await _bookmark(found), await _holder(found)
        assert resume["resume"] is not None, "it was to be killed in the middle of the walk"
        found.sandbox.engine.faults.clear()

        async def is_replaced() -> bool:
            return await _holder(found) not in (None, holder)

        bound_s = SyncPolicy().lease_s * 4 / 3
        await eventually(is_replaced, within_s=bound_s + LOOK_SLACK_S, what=f"{waiting.name} leads")
        taken_over_s = time.monotonic() - killed_at
        await found.shipped(within_s=40)
        await found.settled()
        whole_s = time.monotonic() - killed_at
        print(f"\ntaken over after {taken_over_s:.1f} s, {ORDERS} orders shipped {whole_s:.1f} s after the kill")
        assert taken_over_s <= bound_s + LOOK_SLACK_S

        async def is_walked() -> bool:
            return (await _bookmark(found))["walked_at"] is not None

        await eventually(is_walked, within_s=30, what="the walk is complete")
        await found.settled()
        found.assert_one_parcel_each()
        assert await stopped(waiting, work) == [0, 0]
        found.assert_one_parcel_each()  # all are over: nothing can be done twice any more
        assert await found.count("quarantine") == 0
        assert found.sandbox.engine.limits.refused == 0, "a 429 was drawn"


async def _leader(
    found: Deployment, first: ConsumerProcess, second: ConsumerProcess
) -> tuple[ConsumerProcess, ConsumerProcess]:
    """Who leads, and who waits."""
    holder = str(await eventually(lambda: _holder(found), within_s=30, what="somebody leads"))
    leader, waiting = (first, second) if f"-{first.pid}-" in holder else (second, first)
    assert f"-{leader.pid}-" in holder
    return leader, waiting


async def _holder(found: Deployment) -> object:
    return await found.one("SELECT holder FROM leases WHERE role = 'sync/default'")


async def _bookmark(found: Deployment) -> dict[str, object]:
    state = await found.one("SELECT state FROM bookmarks WHERE application = 'default' AND walk = 'events'")
    return dict(json.loads(state)) if state else {"resume": None, "walked_at": None}


async def _walked_pages(found: Deployment, *, at_least: int) -> bool:
    """Whether so many pages are in the ledger, and not all."""
    if (await _bookmark(found))["resume"] is None:
        return False
    return await found.count("events WHERE source = 'backfill'") >= at_least * 100
