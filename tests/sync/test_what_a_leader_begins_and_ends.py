"""A leader looks at whose credentials these are before it reads, says what holds it up, and takes its alarms along."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from consumer.errors import LedgerUnavailable, WrongApplication
from consumer.ledger.reading import hints
from consumer.payments import Credentials
from consumer.sync.backfill.silence import DeliveryHealth
from consumer.sync.health.stalled import STAGES
from consumer.sync.identity import Identity, Owner
from consumer.sync.reconcile.state import load_state
from consumer.sync.role import ApplicationSync, Sync
from tests.support.ports import eventually
from tests.sync.conftest import DELIVERIES, EVENTS, World, counted_by, delivery


@pytest.fixture
def one(world: World) -> ApplicationSync:
    return ApplicationSync(
        world.api, world.database, world.publisher, clock=world.clock, holder="me", metrics=world.metrics
    )


# --- the lead ------------------------------------------------------------------------------------------------------


async def test_a_step_that_fails_is_waited_out_and_said_until_it_goes_through(
    one: ApplicationSync, world: World
) -> None:
    # case: B32, S12
    said = []

    async def step() -> None:
        said.append((dict(one.failures), world.clock.monotonic()))
        if len(said) < 3:
            raise LedgerUnavailable

    assert await one._through(step, asyncio.Event()) is True
    held_up = {"identity": LedgerUnavailable.code}
    assert said == [({}, 0), (held_up, 1), (held_up, 3)]
    assert one.failures == {}
    assert dict(one._took_s()) == dict.fromkeys(STAGES, 0)


async def test_who_is_told_to_stop_begins_nothing(one: ApplicationSync) -> None:
    # case: I4
    stop = asyncio.Event()

    async def step() -> None:
        stop.set()
        raise LedgerUnavailable

    assert await one._through(step, stop) is False


async def test_every_stage_runs_under_the_lead_and_its_alarms_end_with_it(
    one: ApplicationSync, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: B26, O3
    stop, begun = asyncio.Event(), list[object]()

    def runs(stage: object) -> None:
        async def run(stop: asyncio.Event) -> None:
            begun.append(stage)
            world.metrics.gap_open.labels("default").set(1)
            if len(begun) == len(one._stages):
                stop.set()

        monkeypatch.setattr(stage, "run", run)

    for stage in one._stages:
        runs(stage)
    monkeypatch.setattr(one._watch, "run", asyncio.Event.wait)  # a clock whose sleepers do not wait lets nobody else in
    await one.leader.once(partial(one._lead, stop))
    assert begun == [one.confirm, one.refresh, one.backfill, one.reconcile, one.canary]
    assert counted_by(world.metrics, "gap_open", "default") == 0


async def test_a_secret_file_that_breaks_is_told_while_nothing_is_asked(
    one: ApplicationSync, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: S4
    secret = tmp_path / "secret"
    secret.write_text("svc_sk_live_test")
    monkeypatch.setattr(one.app.client, "credentials", Credentials("svc_app_test", secret_file=secret))
    assert one._look() == {}
    secret.rename(tmp_path / "away")
    assert one._look() == {"credentials": "secret_file_broken"}
    (tmp_path / "away").rename(secret)
    assert one._look() == {}


# case: B13, I10
@pytest.mark.parametrize(("reconciled_s", "is_gap"), [(None, True), (-1, True), (0, False), (1, False)])
async def test_a_log_that_was_lost_is_a_gap_unless_state_was_reconciled_since(
    one: ApplicationSync, world: World, reconciled_s: float | None, *, is_gap: bool
) -> None:
    at = world.clock.now()

    async def lead() -> None:
        async with world.database.transaction() as session:
            if reconciled_s is not None:
                state = replace(await load_state(session, "default"), began=at + timedelta(seconds=reconciled_s))
                await one.app.keep(session, state)
        await one.note_lost_log(at)

    await one.note_lost_log(at)
    assert not one.reconcile.wake.is_set(), "who does not lead leaves it to the one who does"
    await one.leader.once(lead)
    async with world.database.reading() as session:
        assert (await DeliveryHealth.of(session, "default")).gap_at == (at if is_gap else None)
    assert one.reconcile.wake.is_set() is is_gap


async def test_a_walk_that_is_dated_ahead_of_our_clock_is_no_age_below_zero(world: World) -> None:
    # case: O3
    world.app.walked(world.clock.now() + timedelta(seconds=30))
    [age] = [sample.value for family in world.metrics.bookmark_seconds.collect() for sample in family.samples]
    assert age == 0


# --- whose data ----------------------------------------------------------------------------------------------------


async def test_credentials_of_another_application_are_refused_before_anything_is_asked(world: World) -> None:
    # case: B32, S7
    identity = Identity(world.app)
    await identity.check()
    assert world.service.calls == {"/v1/application": 1}
    assert counted_by(world.metrics, "wrong_application", "default") == 0
    async with world.database.transaction() as session:
        await world.app.keep(session, Owner(app_id="svc_app_other", service_id="svc_app_test"))
    with pytest.raises(WrongApplication):
        await identity.check()
    assert world.service.calls == {"/v1/application": 1}
    assert counted_by(world.metrics, "wrong_application", "default") == 1


async def test_an_application_keeps_the_name_under_which_the_ledger_holds_it(world: World) -> None:
    """Under another one nothing of it is known, and what was paid in the last hour would be shipped again."""
    # case: B32, S8
    await Identity(world.app).check()
    renamed = replace(world.app, api=replace(world.app.api, application="shop"), token=lambda: 99)
    with pytest.raises(WrongApplication) as refused:
        await Identity(renamed).check()
    assert refused.value.fields == {"application": "shop", "held_as": "default"}
    assert world.service.calls == {"/v1/application": 1}, "nothing was asked"
    assert counted_by(world.metrics, "wrong_application", "shop") == 1
    async with world.database.reading() as session:
        assert await Owner.of(session, "shop") == Owner(), "nothing is remembered"


async def test_a_name_that_was_given_twice_before_goes_on(world: World) -> None:
    """Who renamed it with the version before lives with both."""
    # case: B32, S8
    await Identity(world.app).check()
    renamed = replace(world.app, api=replace(world.app.api, application="shop"), token=lambda: 99)
    async with world.database.transaction() as session:
        await renamed.keep(session, Owner(app_id=world.app.client.credentials.app_id))
    await Identity(renamed).check()


# --- the role ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(sync: Sync) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(sync.run(stop))
    yield
    stop.set()
    await task


async def test_an_application_without_credentials_is_said_and_its_deliveries_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: S1, I15
    async def wait(_self: ApplicationSync, stop: asyncio.Event) -> None:
        await stop.wait()

    monkeypatch.setattr(ApplicationSync, "run", wait)
    sync = Sync(
        [world.api], world.broker, world.database, deliveries_topic=DELIVERIES, events_topic=EVENTS,
        applications=["default", "second"], clock=world.clock, holder="me", metrics=world.metrics,
    )  # fmt: skip
    await world.deliver(replace(delivery(b"{}", event_id="evt_1"), application="second"))

    async def waits() -> bool:
        async with world.database.reading() as session:
            return await hints.count(session, "second") == 1

    with capture_logs() as lines:
        async with running(sync):
            await eventually(waits, within_s=20, what="the delivery is taken in")
    assert [one["application"] for one in lines if one["event"] == "application_without_credentials"] == ["second"]
    shown = {name: counted_by(world.metrics, "credentials_missing", name) for name in ("default", "second")}
    assert shown == {"default": 0, "second": 1}
