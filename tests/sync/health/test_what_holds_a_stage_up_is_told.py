"""What holds a stage up is in the ledger and on the metrics page, and gone when the stage goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import SystemClock
from consumer.errors import LedgerUnavailable
from consumer.events import parse_time
from consumer.ledger import Database
from consumer.ledger.reading import sync_state
from consumer.payments import Credentials, PaymentsClient
from consumer.sync.api import ApplicationApi
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.health import stalled
from consumer.sync.health.stalled import FRESH_FOR, SAY_AGAIN, StalledStage, Watch, after, stalled_stages
from consumer.sync.role import SyncPolicy
from tests.support.ports import eventually
from tests.sync.conftest import SteppedClock, World, counted_by
from tests.sync.service import Json
from tests.sync.test_a_dead_leader_is_replaced import role, running

NOW = SteppedClock().now()
Seen = Callable[[], None]
Run = Coroutine[Any, Any, None]


def test_a_trouble_is_as_old_as_its_stages_first_failure() -> None:
    # case: B7, B32
    [found] = after((), {"backfill": "cursor_loop"}, NOW)
    assert found == StalledStage(stage="backfill", code="cursor_loop", since=NOW)
    later = NOW + timedelta(minutes=5)
    both = after((found,), {"backfill": "server_error", "confirm": "server_error"}, later)
    assert [(one.stage, one.code, one.since) for one in both] == [
        ("backfill", "server_error", NOW),
        ("confirm", "server_error", later),
    ]
    assert after(both, {}, later) == ()
    [hung] = after((), {"confirm": "api_timeout"}, later, {"confirm": 30.0, "backfill": 9.0})
    assert hung.since == later - timedelta(seconds=30), "it has waited for an answer since"


async def test_what_nobody_says_again_is_told_no_more(world: World) -> None:
    # case: B32, O3
    failures, stop = {"identity": "wrong_application"}, asyncio.Event()

    def seen() -> dict[str, str]:
        if world.clock.monotonic() >= 300:
            stop.set()
        return failures

    watch = Watch(world.app, seen)
    began = world.clock.now()
    await watch.run(stop)
    ended = world.clock.now()

    async def told(now: datetime) -> list[tuple[str, datetime]]:
        async with world.database.reading() as session:
            return [(one.code, one.since) for one in await stalled_stages(session, "default", now)]

    assert ended - began >= timedelta(minutes=5)
    lately = ended + FRESH_FOR - 2 * SAY_AGAIN
    assert await told(lately) == [("wrong_application", began)], "said again all the while, and as old as it is"
    assert await told(ended + FRESH_FOR + timedelta(seconds=1)) == [], "every `sync` has ended since"


def watch_for(world: World, seconds: float, failures: dict[str, str], seen: Seen = lambda: None) -> Run:
    """Watch these failures for so long; `seen` is called at each look."""
    stop, ends_s = asyncio.Event(), world.clock.monotonic() + seconds

    def look() -> dict[str, str]:
        seen()
        if world.clock.monotonic() >= ends_s:
            stop.set()
        return failures

    return Watch(world.app, look).run(stop)


async def kept(world: World) -> dict[str, tuple[float, float]]:
    """Since when each stage is in trouble, and when that was said, in seconds after the test's beginning."""
    found = await world.kept(stalled.WALK) or {}
    times = {stage: (parse_time(one["since"]), parse_time(one["said"])) for stage, one in found.items()}
    return {
        stage: ((since - NOW).total_seconds(), (said - NOW).total_seconds())
        for stage, (since, said) in times.items()
        if since and said
    }


@pytest.mark.parametrize(("seconds", "said_s"), [(0, 0), (10, 0), (15, 15), (25, 15), (30, 30)])
async def test_a_trouble_that_lasts_is_said_again_each_quarter_of_a_minute(
    world: World, monkeypatch: pytest.MonkeyPatch, seconds: float, said_s: float
) -> None:
    # case: B7, O3
    monkeypatch.setattr(stalled, "LOOK_EVERY_S", 5.0)
    await watch_for(world, seconds, {"confirm": "api_timeout"})
    assert await kept(world) == {"confirm": (0, said_s)}


async def test_a_trouble_is_said_again_when_the_clock_was_set_back(world: World) -> None:
    # case: B7, O3
    def set_back() -> None:
        if world.clock.monotonic() == 4:
            world.clock._now -= timedelta(seconds=10)

    await watch_for(world, 4, {"confirm": "api_timeout"}, set_back)
    assert await kept(world) == {"confirm": (0, -6)}


async def test_at_one_moment_a_trouble_is_said_once(world: World) -> None:
    # case: B7
    said = list[int]()

    def token() -> int:
        said.append(1)
        return 1

    watch = Watch(replace(world.app, token=token), dict)
    for _ in range(3):
        await watch._note({"confirm": "api_timeout"})
    assert len(said) == 1


async def test_what_another_leader_noted_meanwhile_counts(world: World) -> None:
    # case: B7, B26
    failures, stop = {"confirm": "api_timeout"}, asyncio.Event()
    watch = Watch(world.app, lambda: stop.set() or failures)  # type: ignore[func-returns-value]  # one look a run
    await watch.run(stop)
    world.clock.advance(4)
    async with world.database.transaction() as session:
        await sync_state.keep(session, "default", stalled.WALK, {}, token=1, now=world.clock.now())
    stop.clear()
    await watch.run(stop)
    assert await kept(world) == {"confirm": (6, 6)}, "it was well under the other leader"


class Unsure(Database):
    """A ledger that loses its answer to the next commit."""

    loses = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        async with super().transaction() as session:
            yield session
        if self.loses:
            self.loses = False
            raise LedgerUnavailable(reason="scripted")


async def test_what_was_stored_though_the_answer_was_lost_is_taken_back_when_it_is_over(
    world: World, tmp_path: Path
) -> None:
    # case: B7, G5
    ledger = Unsure(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
    unsure, failures = replace(world, database=ledger), {"confirm": "api_timeout"}

    def seen() -> None:
        if world.clock.monotonic() == 0:
            ledger.loses = True
        else:
            failures.clear()

    await watch_for(unsure, 2, failures, seen)
    assert await kept(world) == {}
    await ledger.stop()


async def test_the_metrics_page_shows_which_stages_are_held_up_while_one_leads(world: World) -> None:
    # case: B7, O6
    shown = list[dict[str, float]]()

    def seen() -> None:
        stages = ("confirm", "backfill", "canary")
        shown.append({stage: counted_by(world.metrics, "held_up", "default", stage) for stage in stages})

    await watch_for(world, 2, {"confirm": "api_timeout", "canary": "api_timeout"}, seen)
    seen()
    well = {"confirm": 0, "backfill": 0, "canary": 0}
    assert shown == [well, {"confirm": 1, "backfill": 0, "canary": 1}, well]


@pytest.mark.slow
async def test_a_cursor_loop_is_in_the_ledger_until_the_list_is_well_again(world: World) -> None:
    # case: B7
    loops = True

    def listed(cursor: str | None, limit: int) -> Json:
        item = {"id": "evt_1", "type": "order.paid", "created_at": "2026-01-01T00:00:00Z"}
        return {"items": [item], "next_cursor": "evt_1" if loops else None}

    world.service.lists["/v1/events"] = listed
    for name in ("orders", "subscriptions", "payments"):
        world.service.lists[f"/v1/{name}"] = lambda cursor, limit: {"items": [], "next_cursor": None}
    credentials = Credentials("svc_app_test", ["svc_sk_live_test"])
    policy = SyncPolicy(lease_s=1.5, backfill=BackfillPolicy(interval_s=0.5))
    async with PaymentsClient(world.service.address, credentials, clock=SystemClock()) as client:
        api = ApplicationApi(application="default", client=client)
        first = role(api, world.broker, world.database, "one", policy)
        async with running(first):
            [found] = await eventually(lambda: _noted(world), within_s=20)
            assert (found.stage, found.code) == ("backfill", "cursor_loop")
            assert counted_by(first.metrics, "held_up", "default", "backfill") == 1
        assert counted_by(first.metrics, "held_up", "default", "backfill") == 0, "who does not lead is not held up"
        second = role(api, world.broker, world.database, "two", policy)
        loops = False
        async with running(second):
            await eventually(lambda: _forgotten(world), within_s=20, what="the next leader goes on with it")


async def _noted(world: World) -> tuple[StalledStage, ...]:
    async with world.database.reading() as session:
        return await stalled_stages(session, "default", SystemClock().now())


async def _forgotten(world: World) -> bool:
    return not await _noted(world)
