"""The role `sync`: two processes over one ledger and one log, a simulator that loses webhooks, and a death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from consumer.broker import EmbeddedBroker
from consumer.clock import SystemClock
from consumer.errors import WrongApplication
from consumer.ledger import Database, processes
from consumer.ledger.handling import events
from consumer.ledger.processes import READS, Pulse
from consumer.ledger.reading import hints, quarantine
from consumer.payments import Credentials, PaymentsClient
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.confirm.policy import ConfirmPolicy
from consumer.sync.health import giving_way
from consumer.sync.health.status import application_statuses
from consumer.sync.identity import Identity
from consumer.sync.role import Sync, SyncPolicy
from consumer.telemetry.metrics import Metrics
from tests.support.ports import eventually
from tests.sync.conftest import DELIVERIES, EVENTS, SECRETS, World, counted_by, delivery

pytestmark = pytest.mark.slow


@pytest.fixture
def sqlite_ledger(database: Database) -> Database:
    """These stories are told on SQLite and on PostgreSQL."""
    return database


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(SandboxConfig(limits=False)) as found:
        yield found


@pytest.fixture
async def api(sandbox: Sandbox) -> AsyncIterator[ApplicationApi]:
    credentials = Credentials(SECRETS[0], [SECRETS[1]])
    async with PaymentsClient(sandbox.base_url, credentials) as client:
        yield ApplicationApi(application="default", client=client)


POLICY = SyncPolicy(
    lease_s=1.5, backfill=BackfillPolicy(interval_s=0.5), confirm=ConfirmPolicy(idle_s=0.1, patience_s=1.0)
)


def role(
    api: ApplicationApi,
    broker: EmbeddedBroker,
    database: Database,
    holder: str,
    policy: SyncPolicy = POLICY,
    metrics: Metrics | None = None,
) -> Sync:
    return Sync(
        [api],
        broker,
        database,
        deliveries_topic=DELIVERIES,
        events_topic=EVENTS,
        applications=["default"],
        clock=SystemClock(),
        holder=holder,
        metrics=metrics,
        policy=policy,
    )


@asynccontextmanager
async def running(sync: Sync) -> AsyncIterator[asyncio.Task[None]]:
    stop = asyncio.Event()
    task = asyncio.create_task(sync.run(stop))
    try:
        yield task
    finally:
        stop.set()
        async with asyncio.timeout(15):
            with suppress(asyncio.CancelledError):
                await task


def emit(sandbox: Sandbox, count: int, app_id: str = SECRETS[0]) -> list[str]:
    made_up = sandbox.engine.events.made_up
    return [made_up("order.paid", app_id, {"order_id": f"A-{number}"}, {}).id for number in range(count)]


async def until_published(world: World, ids: set[str], limit_s: float = 20) -> None:
    async with asyncio.timeout(limit_s):
        while not ids <= {event.id for event in await world.published()}:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.1)


async def test_one_that_is_refused_lets_one_lead_that_is_not(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: S3, B26
    """A secret was forgotten on one of two hosts: it led, and the good one stood by for ever."""
    monkeypatch.setattr(giving_way, "PATIENCE_S", 0.5)
    monkeypatch.setattr(giving_way, "LOOK_EVERY_S", 0.1)
    wanted = set(emit(sandbox, 3))
    forgotten = Credentials(SECRETS[0], ["svc_sk_live_forgotten"])
    async with PaymentsClient(sandbox.base_url, forgotten) as client:
        api = ApplicationApi(application="default", client=client)
        bad, good = (role(one, world.broker, world.database, name) for one, name in ((api, "bad"), (world.api, "good")))
        async with running(bad):
            await eventually(lambda: client.circuit.is_open, within_s=10, every_s=0.05, what="it leads, and is refused")
            async with running(good):
                now = SystemClock().now()
                pulses = [
                    Pulse(
                        process=name, role="sync", host="h", pid=1, version="1", started_at=now, ready=True, since=now,
                        said={READS: "default"},
                    )
                    for name in ("bad", "good")
                ]  # fmt: skip
                async with world.database.transaction() as session:
                    await processes.beat(session, pulses, now)
                await until_published(world, wanted)
                assert (bad.gave_way, good.gave_way) == (["default"], [])


async def test_hints_and_lost_webhooks_alike_become_events(world: World, sandbox: Sandbox) -> None:
    # case: G3, I15, I17
    announced, lost = emit(sandbox, 5), emit(sandbox, 30)
    sync = role(world.api, world.broker, world.database, "one")
    async with running(sync):
        for number, event_id in enumerate([*announced, "evt_forged"]):
            await world.deliver(
                delivery(b'{"id":"%s","type":"order.paid"}' % event_id.encode(), number, event_id=event_id)
            )
        await until_published(world, {*announced, *lost})
        async with asyncio.timeout(20):
            while not await _quarantined(world):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.1)
        assert sync.applications["default"].failures == {}
    assert "evt_forged" not in {event.id for event in await world.published()}


async def _quarantined(world: World) -> int:
    async with world.database.reading() as session:
        return await quarantine.count(session)


async def test_when_the_leader_dies_another_goes_on_and_nothing_is_lost(world: World, sandbox: Sandbox) -> None:
    # case: B26, B10, G5
    first = role(world.api, world.broker, world.database, "one")
    second = role(world.api, world.broker, world.database, "two")
    heir = second.applications["default"].leader
    ids = set(emit(sandbox, 250))
    async with running(first) as leading:
        await until_published(world, ids)
        async with running(second):
            ids |= set(emit(sandbox, 150))
            await _kill(first, leading)
            killed_at = asyncio.get_running_loop().time()
            async with asyncio.timeout(15):
                while not heir.leads:  # noqa: ASYNC110 - seen from outside
                    await asyncio.sleep(0.05)
            assert asyncio.get_running_loop().time() - killed_at < 1.5 * 4 / 3 + 2
            ids |= set(emit(sandbox, 50))
            await until_published(world, ids)
    async with world.database.transaction() as session:
        new = await events.record(session, await world.published(), world.clock.now())
    assert {event_id for _, event_id in new} == ids


async def _kill(sync: Sync, task: asyncio.Task[None]) -> None:
    """As near to kill -9 as one process allows: the lease is not given back."""
    leader = sync.applications["default"].leader
    leader._tenure._lease = None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_wrong_credentials_keep_every_stage_back(world: World, sandbox: Sandbox) -> None:
    # case: B32
    ours = role(world.api, world.broker, world.database, "one")
    async with running(ours):
        await until_published(world, set(emit(sandbox, 3)))
    sandbox.engine.applications.add("mer_sandbox", "Other", app_id="svc_app_other", secrets=("svc_sk_live_other",))
    credentials = Credentials("svc_app_other", ["svc_sk_live_other"])
    async with PaymentsClient(sandbox.base_url, credentials) as client:
        foreign = ApplicationApi(application="default", client=client)
        with pytest.raises(WrongApplication):
            await Identity(replace(world.app, api=foreign, clock=SystemClock(), token=lambda: 99)).check()
        before = len(await world.published())
        theirs = role(foreign, world.broker, world.database, "two")
        sandbox.engine.events.made_up("order.paid", "svc_app_other", {"order_id": "X"}, {})
        async with running(theirs):
            async with asyncio.timeout(15):
                while "identity" not in theirs.applications["default"].failures:  # noqa: ASYNC110 - seen from outside
                    await asyncio.sleep(0.05)
        assert len(await world.published()) == before


async def test_it_stops_within_seconds_while_everything_is_down(tmp_path: Path, world: World, sandbox: Sandbox) -> None:
    # case: I4, O7
    await sandbox.stop()
    sync = role(world.api, world.broker, world.database, "one")
    async with running(sync):
        async with asyncio.timeout(15):
            while "identity" not in sync.applications["default"].failures:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.05)
        await world.broker.stop()
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 10


async def test_an_application_without_credentials_keeps_nobody_from_the_others(world: World, sandbox: Sandbox) -> None:
    # case: I29, S7, S8
    sync = Sync(
        [world.api], world.broker, world.database, deliveries_topic=DELIVERIES, events_topic=EVENTS,
        applications=["default", "club"], clock=SystemClock(), holder="one", policy=POLICY,
    )  # fmt: skip
    async with running(sync):
        for number in range(3):
            waits = delivery(b'{"id":"evt_club%d"}' % number, number, event_id=f"evt_club{number}")
            await world.deliver(replace(waits, application="club"))
        await until_published(world, set(emit(sandbox, 20)))
        async with asyncio.timeout(15):
            while await _waiting(world, "club") != 3:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.05)
        assert sync.applications["default"].failures == {}
    assert (counted_by(sync.metrics, "credentials_missing", "club"), sync.unread) == (1, ("club",))
    assert counted_by(sync.metrics, "credentials_missing", "default") == 0
    async with world.database.reading() as session:
        [ours, theirs] = await application_statuses(
            session, [("default", "svc_app_sandbox"), ("club", None)], SystemClock().now()
        )
    assert (ours.has_credentials, theirs.has_credentials, theirs.hints) == (True, False, 3)
    sandbox.engine.applications.add("mer_sandbox", "Club", app_id="svc_app_club", secrets=("svc_sk_live_club",))
    async with PaymentsClient(sandbox.base_url, Credentials("svc_app_club", ["svc_sk_live_club"])) as client:
        club = ApplicationApi(application="club", client=client)
        given = role(club, world.broker, world.database, "two")
        announced = emit(sandbox, 1, "svc_app_club")
        async with world.database.transaction() as session:
            now = SystemClock().now()
            named = replace(delivery(b"{}", 9, event_id=announced[0]), application="club")
            await hints.keep(session, [named], now)
        async with running(given), asyncio.timeout(15):
            while await _waiting(world, "club"):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.05)
        assert announced[0] in {event.id for event in await world.published() if event.application == "club"}


async def _waiting(world: World, application: str) -> int:
    async with world.database.reading() as session:
        return await hints.count(session, application)
