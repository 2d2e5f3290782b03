"""The corpus of odd records through running processes, Apache Kafka and PostgreSQL: as signed webhooks, as webhooks
that are only hints, as listed events and as answers of the API. Each PAID order is shipped once, and plain orders
between the odd ones do not wait. `CONSUMER_TEST_HISTORIES=2000` plays all of it."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import text
from standardwebhooks import Webhook

from consumer.ledger import Database
from tests.hostile.corpus import OddService, corpus
from tests.hostile.texts import written
from tests.promises.deployment import started
from tests.support.ledger import first_walks
from tests.support.load import SECRET
from tests.support.loopback import LoopbackServer
from tests.support.merchant.plugin import install_plugin
from tests.support.merchant.warehouse import Warehouse
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, command

NUMBER = int(os.environ.get("CONSUMER_TEST_HISTORIES", "60"))  # `make chaos` asks for thousands
PLAIN_EVERY = 4
WITHIN_S = 60.0 + NUMBER / 10
AUTHENTICITIES = {"signature": {"CONSUMER_WEBHOOK_SECRETS": SECRET}, "api": {}}

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(3 * WITHIN_S)]


@dataclass
class Shop:
    """The consumer's processes between an odd service and a warehouse."""

    service: OddService
    warehouse: Warehouse
    database: Database
    environ: dict[str, str]
    orders: list[dict[str, Any]]
    serve: ConsumerProcess

    async def webhooks(self, *, signed: bool) -> Counter[int]:
        """All of them, a few at once; how they were answered."""
        answers: Counter[int] = Counter()
        queue = iter(self.service.events)

        async def send(http: aiohttp.ClientSession) -> None:
            for event in queue:
                body, at = written(event), datetime.now(UTC)
                headers = {"Content-Type": "application/json"}
                if signed:
                    headers |= {
                        "webhook-id": event["id"],
                        "webhook-timestamp": str(int(at.timestamp())),
                        "webhook-signature": Webhook(SECRET).sign(event["id"], at, body.decode()),
                    }
                address = f"{self.serve.addresses['public_url']}/webhooks/default"
                async with http.post(address, data=body, headers=headers) as answer:
                    answers[answer.status] += 1

        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(send(http))
        return answers

    async def all_are_shipped(self, began: float) -> float:
        """Each order once, however odd; the seconds from `began` until the last plain one was."""
        plain = {order["order_id"] for order in self.orders[::PLAIN_EVERY]}
        every = {order["order_id"] for order in self.orders}
        await eventually(lambda: plain <= set(self.warehouse.keys), within_s=WITHIN_S, what="plain orders are shipped")
        took = time.monotonic() - began
        await eventually(lambda: every <= set(self.warehouse.keys), within_s=WITHIN_S, what="odd orders are shipped")
        await eventually(self._nothing_waits, within_s=WITHIN_S, every_s=0.2, what="nothing waits")
        assert self.warehouse.parcels == dict.fromkeys(every, 1)
        return took

    async def _nothing_waits(self) -> bool:
        """Every hint has come to an end, every run is done."""
        return not await self.count("hints") + await self.count("runs WHERE status <> 'succeeded'")

    async def count(self, what: str) -> int:
        async with self.database.reading() as session:
            return int((await session.execute(text(f"SELECT count(*) FROM {what}"))).scalar_one())


@asynccontextmanager
async def running(
    folder: Path, broker_url: str, database_url: str, authenticity: str, shown: set[str]
) -> AsyncIterator[Shop]:
    """All roles at work, after a first walk of lists that were empty."""
    orders = corpus(NUMBER)
    for number in range(0, NUMBER, PLAIN_EVERY):
        orders[number] = {"id": f"ord_{number}", "order_id": f"A-{number}", "status": "PAID", "amount": "10.00"}
    service, database = OddService(orders, datetime.now(UTC)), Database(database_url)
    service.shown.clear()
    async with LoopbackServer(service.answer, "") as api, Warehouse() as warehouse:
        environ = {
            "CONSUMER_BROKER_URL": broker_url,
            "CONSUMER_DATABASE_URL": database_url,
            "CONSUMER_TOPIC_PREFIX": f"odd-{uuid.uuid4().hex[:8]}",
            "CONSUMER_SYNC_INTERVAL_S": "1",
            "CONSUMER_AUTHENTICITY": authenticity,
            "CONSUMER_HANDLER_OPTIONS": '{"fulfilment": {"matching": "off"}}',
            "SVC_BASE_URL": api.url,
            "SVC_APP_ID": "svc_app_test",
            "SVC_APP_SECRET": "svc_sk_live_test",
            **AUTHENTICITIES[authenticity],
            **install_plugin(folder, "warehouse_plugin", warehouse.plugin()),
        }
        serve, work, sync = (ConsumerProcess(role, environ, folder) for role in ("serve", "work", "sync"))
        try:
            done = await asyncio.to_thread(command, "db", "upgrade", environ=environ)
            assert done.returncode == 0, done.stderr
            done = await asyncio.to_thread(command, "reconcile", "--json", environ=environ)
            assert done.returncode == 0, done.stderr
            async with started(serve, work, sync):
                shop = Shop(service, warehouse, database, environ, orders, serve)
                await eventually(
                    lambda: first_walks.are_over(database), within_s=60, every_s=0.2, what="the first walks are over"
                )
                service.shown.update(shown)
                yield shop
        finally:
            await database.stop()


async def hints(shop: Shop) -> int:
    """Webhooks that the list confirms."""
    answers = await shop.webhooks(signed=False)
    assert set(answers) <= {200, 400}
    return answers[400]


async def signed(shop: Shop) -> int:
    """Webhooks that are facts; what is refused comes by the list, which is shown afterwards."""
    answers = await shop.webhooks(signed=True)
    assert set(answers) <= {200, 400}
    await eventually(
        lambda: len(shop.warehouse.keys) >= answers[200], within_s=WITHIN_S, what="signed ones are shipped"
    )
    shop.service.shown.add("events")
    return answers[400]


async def listed(_: Shop) -> int:
    """No webhook at all."""
    return 0


async def answered(shop: Shop) -> int:
    """No event at all: a walk of the orders."""
    limit = ("--max-changes", str(NUMBER))
    done = await asyncio.to_thread(command, "reconcile", *limit, "--json", environ=shop.environ, within_s=WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return 0


# Way: the authenticity, the lists that the service has from the beginning, and what happens.
WAYS: dict[str, tuple[str, set[str], Callable[[Shop], Awaitable[int]]]] = {
    "hints": ("api", {"events"}, hints),
    "signed webhooks": ("signature", set(), signed),
}
if "CONSUMER_TEST_HISTORIES" in os.environ:  # the suite plays these on the embedded log only
    WAYS |= {"listed events": ("signature", {"events"}, listed), "answers of the API": ("api", {"orders"}, answered)}


@pytest.fixture
def places(tmp_path: Path, kafka_url: str, postgres_url: str) -> tuple[Path, str, str]:
    return tmp_path, kafka_url, postgres_url


@pytest.mark.parametrize("way", WAYS)
async def test_every_odd_order_is_shipped_once(places: tuple[Path, str, str], way: str) -> None:
    # case: U1, F1, F18, I10, I15, I17, B1, B18
    authenticity, shown, play = WAYS[way]
    async with running(*places, authenticity, shown) as shop:
        began = time.monotonic()
        refused = await play(shop)
        took = await shop.all_are_shipped(began)
        assert await shop.count("quarantine") == refused, "what was refused is kept"
    print(f"\n{NUMBER} odd records as {way}, {refused} refused: each shipped once, the plain ones after {took:.1f} s")
