"""Certificate: it says complete only when every listed event of the window is here and done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest

from consumer.broker import EmbeddedBroker
from consumer.ledger import Database, events, runs
from consumer.ledger.tables import RunStatus
from consumer.sync.backfill import Backfill
from consumer.sync.certificate import Certifier, digest
from tests.sync.conftest import Simulated, SteppedClock, World, simulated
from tests.sync.service import ScriptedService


@pytest.fixture
async def service_side(clock: SteppedClock) -> AsyncIterator[Simulated]:
    async with simulated(clock) as found:
        yield found


@pytest.fixture
def world(
    broker: EmbeddedBroker,
    sqlite_ledger: Database,
    service: ScriptedService,
    service_side: Simulated,
    clock: SteppedClock,
) -> World:
    return World(broker=broker, database=sqlite_ledger, service=service, reader=service_side.reader, clock=clock)


async def backfilled(world: World) -> None:
    stage = Backfill(world.reader, world.database, world.outlet, clock=world.clock, token=lambda: 1)
    await stage.once()
    await world.work()


async def run_of(world: World, event_ids: Sequence[str], status: RunStatus) -> None:
    """Runs of these events, as the workers leave them."""
    async with world.database.transaction() as session:
        found = await events.load(session, [("default", one) for one in event_ids])
        for number, event in enumerate(found.values()):
            new = runs.Run(
                application="default", event_id=event.id, handler="h", seq=number, key=event.key, status=status,
                blocking=status is not RunStatus.SUCCEEDED,
            )  # fmt: skip
            await runs.add(session, [new], world.clock.now())


async def test_what_is_missing_is_named_and_after_recovery_it_is_complete(
    world: World, service_side: Simulated
) -> None:
    # case: O7, B13
    began = service_side.sandbox.clock.now()
    ids = service_side.emit(150)
    certifier = Certifier(world.reader, world.database, clock=world.clock)
    until = began + timedelta(hours=1)
    before = await certifier.certify(began, until)
    assert (before["verdict"], before["missing"], len(before["missing_ids"])) == ("missing", 150, 150)
    await backfilled(world)
    after = await certifier.certify(began, until)
    assert (after["verdict"], after["listed"], after["recovered"], after["received_by_webhook"]) == (
        "complete",
        150,
        150,
        0,
    )
    assert after["sha256"] == digest(after)
    assert after["events_sha256"] != before["events_sha256"]
    assert set(before["missing_ids"]) == set(ids)


async def test_only_the_window_is_certified(world: World, service_side: Simulated) -> None:
    # case: O7
    service_side.emit(20)
    began = service_side.sandbox.clock.now()
    service_side.emit(30)
    until = service_side.sandbox.clock.now() + timedelta(milliseconds=1)
    service_side.emit(10)
    certifier = Certifier(world.reader, world.database, clock=world.clock)
    found = await certifier.certify(began + timedelta(milliseconds=1), until)
    assert found["listed"] == 30


async def test_events_whose_work_is_not_done_keep_it_open(world: World, service_side: Simulated) -> None:
    # case: O7
    began = service_side.sandbox.clock.now()
    ids = service_side.emit(4)
    await backfilled(world)
    await run_of(world, ids[:1], RunStatus.SUCCEEDED)
    await run_of(world, ids[1:2], RunStatus.DEAD)
    await run_of(world, ids[2:3], RunStatus.PARKED)
    found = await Certifier(world.reader, world.database, clock=world.clock).certify(began, began + timedelta(hours=1))
    assert found["verdict"] == "open"
    assert found["outcomes"] == {"dead": 1, "handled": 1, "no_handler": 1, "parked": 1}
    assert set(found["open_ids"]) == set(ids[1:3])
