"""Credentials and limits while walking: rolled secrets, a 429 on the way, one budget for all."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from consumer.broker import EmbeddedBroker
from consumer.ledger import Database
from consumer.ledger.reading import hints, quarantine
from consumer.payments import (
    ApiError,
    Attempt,
    AuthenticationError,
    BudgetExhausted,
    CallKind,
    CircuitOpen,
    Credentials,
    PaymentsClient,
    PaymentsError,
    Priority,
    RateLimitError,
    ServiceUnreachable,
)
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sync.api import ApplicationApi, Cooldown, held_up_s
from consumer.sync.backfill.catch_up import CatchUp
from consumer.sync.backfill.stage import Backfill
from consumer.sync.confirm.stage import Confirm
from consumer.sync.quota import TokenBucket
from consumer.sync.reconcile.stage import Reconcile
from tests.sync.conftest import SECRETS, SteppedClock, World, delivery, simulated
from tests.sync.service import ScriptedService

HALF_AN_HOUR = timedelta(minutes=30)


def backfill(world: World) -> Backfill:
    return Backfill(world.app, world.settlement())


@pytest.mark.parametrize("page", [1, 2, 4])
async def test_a_429_is_waited_out_and_the_same_cursor_asked_again(world: World, page: int) -> None:
    # case: B24
    listed = [world.service.event(number) for number in range(350)]
    asked: list[str | None] = []

    def events(cursor: str | None, limit: int) -> dict[str, object]:
        asked.append(cursor)
        if len(asked) == page - 1:
            world.service.failing_once.append(("/v1/events", 429, {"Retry-After": "45"}))
        start = int(cursor or 0)
        following = start + limit if start + limit < len(listed) else None
        return {"items": listed[start : start + limit], "next_cursor": following}

    if page == 1:
        world.service.failing_once.append(("/v1/events", 429, {"Retry-After": "45"}))
    world.service.lists["/v1/events"] = events
    began = world.clock.monotonic()
    report = await backfill(world).once()
    assert report.published == 350
    assert asked == [None, "100", "200", "300"]
    assert world.clock.monotonic() - began >= 45


async def test_a_secret_that_is_rolled_and_written_to_its_file_is_used_without_restart(
    world: World, clock: SteppedClock, tmp_path: Path
) -> None:
    # case: S3, S4, I29
    async with simulated(clock) as service_side:
        file = tmp_path / "secret"
        file.write_text(SECRETS[1])
        credentials = Credentials(SECRETS[0], secret_file=file)
        async with PaymentsClient(service_side.sandbox.base_url, credentials, clock=clock) as client:
            world.api = ApplicationApi(application="default", client=client)
            stage = backfill(world)
            wanted = service_side.emit(5)
            await stage.once()
            new = service_side.sandbox.engine.applications.roll_secret(SECRETS[0], "immediately")
            wanted += service_side.emit(5)
            hinted = wanted[-1]
            async with world.database.transaction() as session:
                one = delivery(b'{"id":"%s"}' % hinted.encode(), 1, event_id=hinted)
                await hints.keep(session, [one], clock.now())
            confirm = Confirm(world.app, world.settlement())
            for _ in range(10):
                with pytest.raises((AuthenticationError, CircuitOpen)):
                    await stage.once()
                with pytest.raises((AuthenticationError, CircuitOpen)):
                    await confirm.once()
                clock.advance(6)
            file.write_text(new)
            clock.advance(6)
            assert await confirm.once() == 1
            await stage.once()
            assert {event.id for event in await world.published()} == set(wanted)
            async with world.database.reading() as session:
                assert await quarantine.count(session) == 0


async def test_with_both_secrets_configured_a_roll_fails_nothing(world: World, clock: SteppedClock) -> None:
    # case: S2
    async with simulated(clock) as service_side:
        new = service_side.sandbox.engine.applications.roll_secret(SECRETS[0], "1h")
        credentials = Credentials(SECRETS[0], [SECRETS[1], new])
        async with PaymentsClient(service_side.sandbox.base_url, credentials, clock=clock) as client:
            world.api = ApplicationApi(application="default", client=client)
            stage = backfill(world)
            for _ in range(4):
                service_side.emit(3)
                assert (await stage.once()).published == 3
                service_side.sandbox.clock.advance_to(service_side.sandbox.clock.now() + HALF_AN_HOUR)
                clock.advance(HALF_AN_HOUR.total_seconds())


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (CircuitOpen(retry_after_s=0), 0.1),
        (CircuitOpen(retry_after_s=3), 3),
        (CircuitOpen(retry_after_s=30), 5),
        (BudgetExhausted(retry_after_s=0), 0.1),
        (BudgetExhausted(retry_after_s=20), 20),
        (BudgetExhausted(retry_after_s=90), 30),
        (AuthenticationError(status=401), 5),
        (RateLimitError(status=429, retry_after_s=0.5), 1),
        (RateLimitError(status=429, retry_after_s=45), 45),
        (RateLimitError(status=429, retry_after_s=3600), 60),  # from then on the budget knows when it may be tried
        (ServiceUnreachable("nobody answers"), 5),
        (ApiError(status=403), None),
    ],
)
def test_what_says_nothing_of_this_call_holds_all_back_for_a_while(error: PaymentsError, seconds: float | None) -> None:
    # case: S3, S5, S14
    assert held_up_s(error) == seconds


def test_a_failure_that_concerns_all_calls_is_raised_until_its_time_is_over(clock: SteppedClock) -> None:
    # case: S5, S14
    cooldown = Cooldown(clock)
    cooldown.check()
    assert cooldown.take(ApiError(status=403)) is False
    cooldown.check()
    clock.advance(100)
    assert cooldown.take(RateLimitError(status=429, retry_after_s=45)) is True
    clock.advance(44.5)
    with pytest.raises(RateLimitError):
        cooldown.check()
    clock.advance(0.5)
    cooldown.check()


def test_a_failure_that_is_over_is_not_kept(clock: SteppedClock) -> None:
    cooldown, error = Cooldown(clock), ServiceUnreachable("nobody answers")
    kept = weakref.ref(error)
    cooldown.take(error)
    del error
    clock.advance(4)
    with pytest.raises(ServiceUnreachable):
        cooldown.check()
    assert kept() is not None
    clock.advance(2)
    cooldown.check()
    assert kept() is None


def test_reads_of_what_may_be_forged_come_at_a_pace_and_so_many_at_once(clock: SteppedClock) -> None:
    # case: I15, B23
    bucket = TokenBucket(clock, per_s=2, burst=5)
    assert [bucket.grant(wanted) for wanted in (3, 9, 1)] == [3, 2, 0]
    clock.advance(0.25)
    assert (bucket.grant(1), bucket.covers(1)) == (0, False), "half a read is none"
    clock.advance(0.25)
    assert (bucket.covers(1), bucket.covers(2), bucket.grant(9)) == (True, False, 1)
    clock.advance(100)
    assert (bucket.covers(5), bucket.covers(6), bucket.grant(9)) == (True, False, 5)
    clock.advance(1)
    assert bucket.covers(2)
    assert bucket.grant(0) == 0
    assert bucket.grant(9) == 2
    clock.advance(1)
    assert bucket.grant(9) == 2, "nobody has to look first"


async def test_an_application_knows_its_address_and_how_long_pages_take(world: World, api: ApplicationApi) -> None:
    # case: C15, B23
    assert f"http://{api.address}" == world.service.address
    budget = api.client.budget
    assert await api.predict_s(400) == await budget.predict_s(CallKind.READ, Priority.BACKFILL, 400) > 0


class Linked(SteppedClock):
    """A clock that takes the simulator's clock along, so that its rate limits see the same time."""

    sandbox: Sandbox | None = None

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        if self.sandbox is not None:
            self.sandbox.clock.advance_to(self.now())


@pytest.fixture(params=["sliding", "bucket", "fixed"])
async def limited(
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[Linked, Sandbox, ApplicationApi, list[Attempt]]]:
    clock = Linked()
    config = SandboxConfig(driven=True, start=clock.now(), assumptions={"limit_window": request.param})
    async with Sandbox(config) as sandbox:
        clock.sandbox = sandbox
        attempts: list[Attempt] = []
        credentials = Credentials(SECRETS[0], [SECRETS[1]])
        async with PaymentsClient(sandbox.base_url, credentials, clock=clock, on_attempt=attempts.append) as client:
            yield clock, sandbox, ApplicationApi(application="default", client=client), attempts


@pytest.mark.slow
async def test_all_stages_together_draw_no_429_from_a_service_that_counts(
    broker: EmbeddedBroker,
    sqlite_ledger: Database,
    service: ScriptedService,
    limited: tuple[Linked, Sandbox, ApplicationApi, list[Attempt]],
) -> None:
    # case: B23, C15, S14
    clock, sandbox, api, attempts = limited
    world = World(broker=broker, database=sqlite_ledger, service=service, api=api, clock=clock)
    made_up = sandbox.engine.events.made_up
    for number in range(20_000):
        made_up("order.paid", SECRETS[0], {"order_id": f"A-{number}"}, {})
    stage = backfill(world)
    confirm = Confirm(world.app, world.settlement(), catch_up=CatchUp(stage))
    reconcile = Reconcile(world.app, world.publisher)
    rounds = 0

    def meanwhile(_: object) -> None:
        nonlocal rounds
        rounds += 1

    await stage.once(on_progress=meanwhile)
    for number in range(60):
        event_id = made_up("order.paid", SECRETS[0], {"order_id": f"B-{number}"}, {}).id
        async with sqlite_ledger.transaction() as session:
            made = [delivery(b"{}", number * 100 + extra, event_id=f"evt_x{number}-{extra}") for extra in range(40)]
            made.append(delivery(b"{}", number * 100 + 99, event_id=event_id))
            await hints.keep(session, made, clock.now())
        with suppress(BudgetExhausted):
            await confirm.once()
        await reconcile.once()
        await stage.once()
    assert rounds == 200
    assert len(attempts) > 500
    assert {attempt.code for attempt in attempts} <= {None, "resource_not_found"}
