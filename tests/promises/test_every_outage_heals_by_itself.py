"""The endpoint, the API, the database and Kafka go away while orders are paid: everything recovers without a hand.

Scaled to fit a test: 5 orders (10 events) a second and an outage of some seconds stand for an hour at 50 events a
second, which `make chaos` plays (`tests/chaos/outages.py`). The time of recovery is printed: from the end of the outage
until every order paid until then is shipped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from consumer.sandbox import SandboxConfig
from tests.promises.deployment import Deployment, deployment, embedded, started, stopped
from tests.support.kafka import kafka_server
from tests.support.outage import api_away, endpoint_away, server_away
from tests.support.ports import eventually
from tests.support.postgres import create_database, stoppable_server
from tests.support.process import ConsumerProcess

ORDERS_PER_S = 5.0
OUTAGE_S = 6.0
RECOVERY_S = 60.0
PROBE_S = 30.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@asynccontextmanager
async def _under_way(found: Deployment) -> AsyncIterator[ConsumerProcess]:
    """All roles at work, orders being paid, webhooks arriving; at the end all of it must have come out right."""
    serve, work, sync = found.process("serve"), found.process("work"), found.process("sync")
    over = asyncio.Event()
    async with started(serve, work, sync):
        address = f"{serve.addresses['public_url']}/webhooks/default"
        found.sandbox.set_webhook_url(address)
        paying = asyncio.create_task(found.pay_orders_until(over, ORDERS_PER_S))
        try:
            await eventually(lambda: found.warehouse.keys, within_s=30, what="the first order is shipped")
            yield serve
        finally:
            over.set()
            await paying
        await found.shipped(within_s=30)
        await found.settled(within_s=60)
        await found.healthy()
        await found.sandbox.sender.stop()  # attempts go on by the service's schedule: the proof is of what came
        await found.settled()
        found.assert_one_parcel_each()
        assert await stopped(serve, work, sync) == [0, 0, 0]
        found.assert_one_parcel_each()  # all are over: nothing can be done twice any more
        assert await found.count("quarantine") == 0
        assert found.sandbox.engine.limits.refused == 0, "a 429 was drawn"


async def _endured(found: Deployment, what: str, down_s: float = OUTAGE_S) -> None:
    """Time passes while something is away."""
    before = len(found.paid)
    await asyncio.sleep(down_s)  # the length of the outage itself: nothing is waited for
    print(f"\n{what} away for {down_s:.0f} s, {len(found.paid) - before} orders paid meanwhile", end="")


async def _recovered(found: Deployment, within_s: float = RECOVERY_S) -> None:
    """Everything paid until now is shipped, while more orders are being paid."""
    began = time.monotonic()
    await found.shipped(within_s)
    print(f", recovered {time.monotonic() - began:.1f} s after its end")


# case: O1, O7, G3
async def test_of_the_endpoint(tmp_path: Path) -> None:
    async with deployment(tmp_path, **embedded(tmp_path), config=_config()) as found, _under_way(found) as serve:
        async with endpoint_away(serve):
            await _endured(found, "endpoint")
            await eventually(lambda: _is_silent(found), within_s=20, what="webhooks are known to be silent")
        await _recovered(found)

        async def is_heard() -> bool:
            return not await _is_silent(found)

        await eventually(is_heard, within_s=40, what="webhooks are heard again")


# case: I29, O3, O7, S3, S5, S6
async def test_of_the_api_with_401(tmp_path: Path) -> None:
    async with deployment(tmp_path, **embedded(tmp_path), config=_config()) as found, _under_way(found):
        async with api_away(found.sandbox):
            await _endured(found, "API (401)")
            assert await found.count("hints") > 0, "deliveries are accepted, and wait for their confirmation"
            assert (await found.standing()).refused_at is not None
            lately = found.paid[-int(ORDERS_PER_S * OUTAGE_S / 2) :]
            assert not set(lately) & set(found.warehouse.keys), "nothing unconfirmed has an effect"
        await _recovered(found, PROBE_S + RECOVERY_S)


# case: O7
@pytest.mark.postgres
async def test_of_the_database(tmp_path: Path) -> None:
    with stoppable_server() as server:
        url = await asyncio.to_thread(create_database, server.uri)
        log = embedded(tmp_path)["broker_url"]
        async with deployment(tmp_path, broker_url=log, database_url=url, config=_config()) as found, _under_way(found):
            async with server_away(lambda: server.stop("fast"), server.start):
                await _endured(found, "database")
            await _recovered(found)


# case: O7
@pytest.mark.kafka
async def test_of_kafka(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    folder.mkdir()
    with kafka_server(folder) as kafka:
        ledger = embedded(tmp_path)["database_url"]
        async with (
            deployment(tmp_path, broker_url=kafka.url, database_url=ledger, config=_config()) as found,
            _under_way(found),
        ):
            async with server_away(kafka.pause, kafka.resume):
                await _endured(found, "Kafka")
            await _recovered(found)


async def _is_silent(found: Deployment) -> bool:
    return (await found.standing()).silent_since is not None


def _config() -> SandboxConfig:
    return SandboxConfig(seed=1, assumptions={"delivery_schedule": "short"})
