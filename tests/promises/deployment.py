"""Deployment: the consumer's roles as processes against a simulated service, a warehouse, and how it all ended."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from sqlalchemy import text

from consumer.errors import LedgerError
from consumer.ledger import Database, health
from consumer.ledger.engine import schema
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sandbox.scenarios.stage import Stage
from consumer.sync.health.status import ApplicationStatus, application_status
from tests.support.ledger import first_walks
from tests.support.merchant.plugin import install_plugin
from tests.support.merchant.warehouse import Warehouse
from tests.support.ports import eventually, free_port
from tests.support.process import ConsumerProcess, command

NOWHERE = 9
"""A port of the loopback where nobody listens."""
SILENT_WALKS = 4
READY_WITHIN_S = 180.0
"""On a machine that does other things, too."""


class Places(TypedDict):
    """Where log and ledger are."""

    broker_url: str
    database_url: str


@dataclass
class Deployment:
    """What a story of several processes holds in its hands."""

    sandbox: Sandbox
    warehouse: Warehouse
    database: Database
    environ: dict[str, str]
    folder: Path
    paid: list[str]
    subscribed: list[str] = field(default_factory=list)
    untold: set[str] = field(default_factory=set)

    def process(self, role: str, name: str | None = None) -> ConsumerProcess:
        """A role, not yet started."""
        return ConsumerProcess(role, self.environ, self.folder, name)

    def pay_order(self) -> None:
        """An order is paid at the service."""
        stage = Stage(self.sandbox, self.sandbox.config.app_id, 1)
        session = stage.order("order")
        stage.pay(session)
        self.paid.append(session.order_id)

    def subscribe(self) -> None:
        """A customer subscribes at the service."""
        self.subscribed.append(Stage(self.sandbox, self.sandbox.config.app_id, 1).subscribe().id)

    def hear(self, *, at_work: bool) -> None:
        """Webhooks go to `serve`, or where nobody listens."""
        port = self.environ["CONSUMER_PORT"] if at_work else NOWHERE
        self.sandbox.set_webhook_url(f"http://127.0.0.1:{port}/webhooks/default")

    async def fall_silent(self) -> None:
        """Webhooks go nowhere, for so long that it is told. Silence is several events in several walks: each order is
        found by a walk of its own."""
        self.hear(at_work=False)
        for _ in range(SILENT_WALKS):
            self.pay_order()
            await self.shipped(within_s=60)

    async def hear_again(self) -> None:
        """Webhooks go to `serve`, and one comes."""
        self.hear(at_work=True)
        self.pay_order()

    async def pay_orders_until(self, over: asyncio.Event, per_s: float) -> None:
        """Orders are paid, steadily."""
        began, made = time.monotonic(), 0
        while not over.is_set():
            while made < (time.monotonic() - began) * per_s:
                self.pay_order()
                made += 1
            await asyncio.sleep(0.5 / per_s)

    async def subscribe_until(self, over: asyncio.Event, every_s: float) -> None:
        """Customers subscribe, steadily."""
        while not over.is_set():
            self.subscribe()
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await over.wait()

    @asynccontextmanager
    async def busy(self, *, orders_per_s: float, subscribe_every_s: float) -> AsyncIterator[None]:
        """Meanwhile customers buy and subscribe."""
        over = asyncio.Event()
        buying = (self.pay_orders_until(over, orders_per_s), self.subscribe_until(over, subscribe_every_s))
        tasks = [asyncio.create_task(one) for one in buying]
        try:
            yield
        finally:
            over.set()
            await asyncio.gather(*tasks)

    async def shipped(self, within_s: float) -> None:
        """Wait until every order that was paid up to now has left the warehouse; more may be paid meanwhile."""
        wanted = set(self.paid)
        await eventually(
            lambda: wanted <= set(self.warehouse.keys),
            within_s=within_s,
            every_s=0.1,
            what=f"{len(wanted)} paid orders are shipped",
        )

    async def settled(self, within_s: float = 30.0) -> None:
        """Wait until every listed event is in the ledger, every run succeeded, and nothing is left that could still be
        done: no hint, no derived event that is due, no read that is due."""
        listed = self.listed

        async def is_settled() -> bool:
            try:
                async with self.database.reading() as session:
                    figures = await health.figures(session, datetime.now(UTC))
            except LedgerError:
                return False
            lacking = {
                "events": len(listed) - await self.count(f"events WHERE id IN {_quoted(listed)}"),
                "runs": await self.count("runs WHERE status <> 'succeeded'"),
                "hints": figures.hints,
                "outbox": figures.outbox_waiting,
                "reads": figures.reads_due,
            }
            assert not any(lacking.values()), f"left: {lacking}"
            return True

        await eventually(is_settled, within_s=within_s, every_s=0.2, what="every listed event is handled")

    async def walked(self, within_s: float = 60.0) -> None:
        """Wait until the first walks are over: what comes now, a webhook is the first to tell."""
        await eventually(
            lambda: first_walks.are_over(self.database), within_s=within_s, what="the first walks are over"
        )

    async def healthy(self, within_s: float = 60.0) -> None:
        """Wait until `consumer status` says so."""

        async def is_healthy() -> bool:
            done = await asyncio.to_thread(command, "status", "--json", environ=self.environ)
            assert done.returncode == 0, done.stdout + done.stderr
            return True

        await eventually(is_healthy, within_s=within_s, every_s=0.5, what="`consumer status` says healthy")

    def pay_order_untold(self) -> None:
        """An order is paid at the service, and no event will ever tell of it: neither a webhook nor the list."""
        self.hear(at_work=False)
        self.pay_order()
        world = self.sandbox.engine.world
        for event in [one for one in world.events if self.paid[-1] in str(one.snapshot)]:
            world.put(world.events, replace(event, listed=False))
            self.untold.add(event.id.rpartition("/")[2])

    @property
    def listed(self) -> set[str]:
        """Ids of everything that happened at the service, and is told."""
        return {event.id.rpartition("/")[2] for event in self.sandbox.engine.world.events} - self.untold

    def assert_one_parcel_each(self) -> None:
        """Nothing lost, nothing doubled."""
        assert Counter(self.warehouse.parcels.values()) == {1: len(self.paid)}
        assert set(self.warehouse.parcels) == set(self.paid)

    async def count(self, what: str) -> int:
        """How many rows; 0 while the database is away."""
        return int(await self.one(f"SELECT count(*) FROM {what}") or 0)

    async def type(self, *words: str) -> None:
        """An operator's command; the service answers meanwhile. AssertionError when it fails."""
        done = await asyncio.to_thread(command, *words, environ=self.environ)
        assert done.returncode == 0, f"consumer {' '.join(words)}: {done.stdout}{done.stderr}"

    async def answer(self, *words: str) -> str:
        """What an operator's command prints, however it ends."""
        return (await asyncio.to_thread(command, *words, environ=self.environ)).stdout

    async def standing(self) -> ApplicationStatus:
        """How the reading of the service stands, as `status` tells it."""
        async with self.database.reading() as session:
            return await application_status(session, "default", self.sandbox.config.app_id, datetime.now(UTC))

    async def one(self, statement: str) -> Any:
        """A single value; None while the database is away."""
        try:
            async with self.database.reading() as session:
                return (await session.execute(text(statement))).scalar()
        except LedgerError:
            return None


def _quoted(ids: set[str]) -> str:
    return "(" + ", ".join(f"'{one}'" for one in sorted(ids)) + ")"


@asynccontextmanager
async def deployment(
    folder: Path, *, broker_url: str, database_url: str, config: SandboxConfig | None = None, **more: str
) -> AsyncIterator[Deployment]:
    """The service, the warehouse and a migrated ledger; no process yet. Webhooks go to a port that is kept free."""
    database = Database(database_url)
    try:
        await schema.upgrade(database)
        async with Sandbox(config or SandboxConfig(seed=1)) as sandbox, Warehouse() as warehouse:
            port = free_port()
            environ = {
                "CONSUMER_BROKER_URL": broker_url,
                "CONSUMER_DATABASE_URL": database_url,
                "CONSUMER_TOPIC_PREFIX": f"story-{uuid.uuid4().hex[:8]}",
                "CONSUMER_SYNC_INTERVAL_S": "1",
                "CONSUMER_PORT": str(port),
                "SVC_BASE_URL": sandbox.base_url,
                "SVC_APP_ID": sandbox.config.app_id,
                "SVC_APP_SECRET": sandbox.config.app_secret,
                **install_plugin(folder, "warehouse_plugin", warehouse.plugin()),
                **more,
            }
            yield Deployment(sandbox, warehouse, database, environ, folder, [])
    finally:
        await database.stop()


@asynccontextmanager
async def started(*processes: ConsumerProcess) -> AsyncIterator[None]:
    """Started, ready, and stopped at the end whatever happens."""
    try:
        for process in processes:
            process.spawn()
        for process in processes:
            await process.ready(READY_WITHIN_S)
        yield
    finally:
        await stopped(*processes)


async def stopped(*processes: ConsumerProcess) -> list[int]:
    """Stop these, all at once, and their exit codes. The service and the warehouse answer meanwhile, as real ones do:
    who waits for them would be cut off only after its grace."""
    return await asyncio.gather(*(asyncio.to_thread(process.stop) for process in processes))


def embedded(folder: Path) -> Places:
    """The default: a log and a ledger in files."""
    return {
        "broker_url": f"embedded:{folder}/log.db",
        "database_url": f"sqlite+aiosqlite:///{folder}/consumer.db",
    }
