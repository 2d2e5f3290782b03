"""Each `serve` and each `work` is replaced while webhooks come in: every request gets 200, and every order is shipped
once."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import text

from consumer.ledger import Database
from consumer.ledger.engine import schema
from tests.support.load import SECRET, Sending, paid_orders
from tests.support.merchant.plugin import install_plugin
from tests.support.merchant.warehouse import Warehouse
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended
from tests.support.tools import missing

LOOK_EVERY_S = 0.2
SENDERS = 4
ROLES = ("serve", "work")
CHECKOUT = Path(__file__).resolve().parents[2]
MIGRATIONS = Path("consumer/ledger/migrations/versions")


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


async def roll(folder: Path, broker_url: str, database_url: str, older: Path | None = None) -> None:
    """Two `serve` and two `work` are replaced in turn under load. `older`: where the code of the old ones is, when it
    is not this checkout's."""
    database = Database(database_url)
    await schema.upgrade(database)
    async with Warehouse() as warehouse, aiohttp.ClientSession() as http:
        environ = {
            "CONSUMER_BROKER_URL": broker_url,
            "CONSUMER_DATABASE_URL": database_url,
            "CONSUMER_TOPIC_PREFIX": f"deploy-{uuid.uuid4().hex[:8]}",
            "CONSUMER_AUTHENTICITY": "signature",
            "CONSUMER_WEBHOOK_SECRETS": SECRET,
            "CONSUMER_LINGER_S": "1.5",
            **install_plugin(folder, "warehouse_plugin", warehouse.plugin()),
        }
        around_old = environ if older is None else _running(older, environ)
        old, new = (
            {role: [ConsumerProcess(role, around, folder, f"{age}-{role}-{one}") for one in (1, 2)] for role in ROLES}
            for age, around in (("old", around_old), ("new", environ))
        )
        every = [one for age in (old, new) for role in ROLES for one in age[role]]
        balancer, sent = Balancer(http), list[str]()
        with ended(*every):
            for process in every[:4]:
                process.spawn()
            for process in every[:4]:
                await process.ready()
            balancer.instances = list(old["serve"])
            await balancer.look()
            async with _under_load(balancer, sent):
                for role in ROLES:
                    for before, after in zip(old[role], new[role], strict=True):
                        await _replace(before, after, balancer, sent)
            logs = "\n".join(one.log for one in every)
            assert balancer.answers == {200: len(sent)}, logs
            await eventually(lambda: len(warehouse.keys) >= len(sent), within_s=90, what="every order is shipped")
            await eventually(lambda: _paid(database, len(sent)), within_s=60, every_s=0.2)
        assert Counter(warehouse.calls.values()) == {1: len(sent)}, "each once, and nobody was even asked twice"
    await database.stop()


@asynccontextmanager
async def _under_load(balancer: Balancer, sent: list[str]) -> AsyncIterator[None]:
    sendings, over = iter(paid_orders(20_000, 0)), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(SENDERS):
            group.create_task(_keep_sending(balancer, sendings, sent, over))
        group.create_task(balancer.watch(over))
        try:
            yield
        finally:
            over.set()


async def _replace(before: ConsumerProcess, after: ConsumerProcess, balancer: Balancer, sent: list[str]) -> None:
    """The new one first, then the old one goes; orders come all the time."""
    after.spawn()
    await after.ready()
    if before in balancer.instances:
        balancer.instances.append(after)
    await eventually(partial(_more_than, sent, len(sent) + 50))
    assert await asyncio.to_thread(before.stop) == 0
    if before in balancer.instances:
        balancer.instances.remove(before)
    await eventually(partial(_more_than, sent, len(sent) + 50))


# case: O8, I4
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_on_the_embedded_default(tmp_path: Path) -> None:
    await roll(tmp_path, f"embedded:{tmp_path}/log.db", f"sqlite+aiosqlite:///{tmp_path}/consumer.db")


# case: O8, I4
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.timeout(300)
async def test_on_kafka_and_postgresql(tmp_path: Path, kafka_url: str, postgres_url: str) -> None:
    await roll(tmp_path, kafka_url, postgres_url)


# case: O8, O9
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_code_before_the_newest_migration_gives_way_on_the_migrated_schema(tmp_path: Path) -> None:
    older = tmp_path / "older"
    _check_out_before_the_newest_migration(older)
    assert set(_migrations(CHECKOUT)) > set(_migrations(older)), "older"
    await roll(tmp_path, f"embedded:{tmp_path}/log.db", f"sqlite+aiosqlite:///{tmp_path}/consumer.db", older)


def _running(checkout: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which that checkout's code runs, and not this one's."""
    path = os.pathsep.join([str(checkout), environ["PYTHONPATH"]])
    found = {**environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    ask = [sys.executable, "-c", "import consumer; print(consumer.__file__)"]
    told = subprocess.run(ask, env=found, capture_output=True, text=True, check=True).stdout
    assert Path(told).is_relative_to(checkout), told
    return found


def _check_out_before_the_newest_migration(folder: Path) -> None:
    """As the repository's history has it; skips where there is none."""
    added = _git("log", "-1", "--diff-filter=A", "--format=%H", "--", str(MIGRATIONS)).decode().strip()
    shallow = _git("rev-parse", "--is-shallow-repository").decode().strip()
    if not added or shallow != "false":
        missing("the repository's history, which has the code before the newest migration")
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(_git("archive", f"{added}^", "consumer", "handlers"))) as archive:
        archive.extractall(folder, filter="data")


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=CHECKOUT, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""


def _migrations(checkout: Path) -> list[str]:
    return [path.name for path in (checkout / MIGRATIONS).glob("0*.py")]


def _more_than(sent: list[str], count: int) -> bool:
    return len(sent) > count


async def _keep_sending(balancer: Balancer, sendings: Iterator[Sending], sent: list[str], over: asyncio.Event) -> None:
    for sending in sendings:
        if over.is_set():
            return
        await balancer.send(sending)
        sent.append(sending.event_id)
        await asyncio.sleep(0.1)


async def _paid(database: Database, wanted: int) -> bool:
    async with database.reading() as session:
        found = await session.execute(text("SELECT count(*) FROM fulfilment_order WHERE paid_at IS NOT NULL"))
    return bool(found.scalar_one() == wanted)
