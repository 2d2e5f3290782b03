"""Each `serve` is replaced while webhooks come in: every request gets 200, and every order is there once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import text

from consumer.ledger import Database
from consumer.ledger.engine import schema
from tests.support.load import SECRET, Sending, paid_orders
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended

LOOK_EVERY_S = 0.2
SENDERS = 8


class Balancer:
    """Sends to instances that are ready, and looks now and then which are: what a load balancer does."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.instances: list[ConsumerProcess] = []
        self.answers: Counter[int] = Counter()
        self._ready: list[ConsumerProcess] = []
        self._turn = 0
        self._http = http

    async def watch(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        self._ready = [one for one in list(self.instances) if await self._is_ready(one)]

    async def _is_ready(self, instance: ConsumerProcess) -> bool:
        try:
            async with self._http.get(instance.addresses["internal_url"] + "/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def send(self, sending: Sending) -> None:
        self._turn += 1
        instance = self._ready[self._turn % len(self._ready)]
        address = instance.addresses["public_url"] + "/webhooks"
        async with self._http.post(address, data=sending.body, headers=sending.headers) as answer:
            self.answers[answer.status] += 1


# case: O8, I4
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_of_both_instances_one_after_the_other(tmp_path: Path) -> None:
    environ = {
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
        "CONSUMER_LINGER_S": "1.5",
    }
    database = Database(environ["CONSUMER_DATABASE_URL"])
    await schema.upgrade(database)
    old = [ConsumerProcess("serve", environ, tmp_path, f"old-{number}") for number in (1, 2)]
    new = [ConsumerProcess("serve", environ, tmp_path, f"new-{number}") for number in (1, 2)]
    work = ConsumerProcess("work", environ, tmp_path)
    sendings = iter(paid_orders(20_000, 0))
    sent: list[str] = []
    over = asyncio.Event()
    async with aiohttp.ClientSession() as http:
        balancer = Balancer(http)
        with ended(work, *old, *new):
            for process in (work, *old):
                process.spawn()
            for process in (work, *old):
                await process.ready()
            balancer.instances = list(old)
            await balancer.look()
            senders = [asyncio.create_task(_keep_sending(balancer, sendings, sent, over)) for _ in range(SENDERS)]
            watch = asyncio.create_task(balancer.watch(over))
            for before, after in zip(old, new, strict=True):
                after.spawn()
                await after.ready()
                balancer.instances.append(after)
                await eventually(lambda: len(sent) > 100)
                assert await asyncio.to_thread(before.stop) == 0
                balancer.instances.remove(before)
                await eventually(partial(_more_than, sent, len(sent) + 100))
            over.set()
            await asyncio.gather(*senders, watch)
            logs = "\n".join(one.log for one in (*old, *new))
            assert balancer.answers == {200: len(sent)}, logs
            await eventually(lambda: _paid(database, len(sent)), within_s=60, every_s=0.2)
    await database.stop()


def _more_than(sent: list[str], count: int) -> bool:
    return len(sent) > count


async def _keep_sending(balancer: Balancer, sendings: Iterator[Sending], sent: list[str], over: asyncio.Event) -> None:
    for sending in sendings:
        if over.is_set():
            return
        await balancer.send(sending)
        sent.append(sending.event_id)
        await asyncio.sleep(0.02)


async def _paid(database: Database, wanted: int) -> bool:
    async with database.reading() as session:
        found = await session.execute(text("SELECT count(*) FROM fulfilment_order WHERE paid_at IS NOT NULL"))
    return bool(found.scalar_one() == wanted)
