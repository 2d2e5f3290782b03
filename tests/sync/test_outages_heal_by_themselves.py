"""Outages of everything sync stands on, each while events happen: full recovery by itself, in a stated time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker import EmbeddedBroker
from consumer.checks.certificate import Certifier
from consumer.clock import SystemClock
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.reading import quarantine
from consumer.payments import Credentials, PaymentsClient
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.confirm.policy import ConfirmPolicy
from consumer.sync.role import Sync, SyncPolicy
from tests.sync.conftest import DELIVERIES, EVENTS, SECRETS, World, delivery
from tests.sync.test_a_dead_leader_is_replaced import emit, running, until_published

pytestmark = pytest.mark.slow

EVENTS_MISSED = 300
Switch = Callable[[], Coroutine[Any, Any, None]]


class FlakyDatabase(Database):
    """A ledger that does not answer while `down` is set."""

    down = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        self._refuse()
        async with super().transaction() as session:
            yield session

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        self._refuse()
        async with super().reading() as session:
            yield session

    def _refuse(self) -> None:
        if self.down:
            raise LedgerUnavailable(reason="scripted")


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(SandboxConfig(limits=False)) as found:
        yield found


@pytest.fixture
async def api(sandbox: Sandbox) -> AsyncIterator[ApplicationApi]:
    async with PaymentsClient(sandbox.base_url, Credentials(SECRETS[0], [SECRETS[1]])) as client:
        client.circuit.probe_every_s = 1.0
        yield ApplicationApi(application="default", client=client)


@pytest.fixture
async def sqlite_ledger(sqlite_ledger: Database) -> AsyncIterator[Database]:
    found = FlakyDatabase(str(sqlite_ledger.engine.url))
    yield found
    await found.stop()


def role(world: World) -> Sync:
    policy = SyncPolicy(
        lease_s=3, backfill=BackfillPolicy(interval_s=0.5), confirm=ConfirmPolicy(idle_s=0.1, patience_s=5)
    )
    return Sync(
        [world.api],
        world.broker,
        world.database,
        deliveries_topic=DELIVERIES,
        events_topic=EVENTS,
        applications=["default"],
        clock=SystemClock(),
        holder="one",
        policy=policy,
    )


def outage(kind: str, world: World, sandbox: Sandbox) -> tuple[Switch, Switch]:
    """How it begins and how it ends."""
    merchant, database = sandbox.engine.applications.change_merchant, world.database
    assert isinstance(database, FlakyDatabase)

    async def nothing() -> None:
        """The endpoint: webhooks do not come, neither before nor after."""

    async def refuse() -> None:
        merchant("mer_sandbox", active=False)

    async def accept() -> None:
        merchant("mer_sandbox", active=True)

    async def database_down() -> None:
        database.down = True

    async def database_up() -> None:
        database.down = False

    switches: dict[str, tuple[Switch, Switch]] = {
        "endpoint": (nothing, nothing),
        "broker": (world.broker.stop, world.broker.start),
        "database": (database_down, database_up),
        "api-401": (refuse, accept),
    }
    return switches[kind]


@pytest.mark.parametrize("kind", ["endpoint", "broker", "database", "api-401"])
async def test_after_an_outage_everything_is_there_without_a_manual_step(
    kind: str, world: World, sandbox: Sandbox, broker: EmbeddedBroker
) -> None:
    # case: O7, S3, S6, G3, G5, I29
    begin, end = outage(kind, world, sandbox)
    began = SystemClock().now() - timedelta(seconds=1)  # the service's times are of milliseconds
    sync = role(world)
    stage = sync.applications["default"]
    async with running(sync):
        ids = set(emit(sandbox, 20))
        await until_published(world, ids)
        await begin()
        ids |= set(emit(sandbox, EVENTS_MISSED))
        if kind != "endpoint":
            async with asyncio.timeout(20):
                while not stage.failures:  # noqa: ASYNC110 - seen from outside
                    await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        await end()
        over = time.monotonic()
        announced = emit(sandbox, 1)  # a webhook of the first minute after
        raw = b'{"id":"%s","type":"order.paid"}' % announced[0].encode()
        await world.deliver(replace(delivery(raw, 1, event_id=announced[0]), received_at=SystemClock().now()))
        ids |= set(announced)
        await until_published(world, ids, limit_s=45)
        seconds = time.monotonic() - over
        print(f"{kind}: {EVENTS_MISSED} events recovered {seconds:.1f} s after the outage")
        assert seconds < 35
        await world.work()
        certificate = await Certifier(world.api, world.database, clock=SystemClock()).certify(
            began, SystemClock().now()
        )
        assert (certificate["verdict"], certificate["unproven"]) == ("complete", [])
        assert certificate["listed"] == len(ids)
        async with world.database.reading() as session:
            assert await quarantine.count(session) == 0, "an outage quarantines nothing"
