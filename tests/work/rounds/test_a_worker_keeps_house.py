"""Between its batches a worker tells the ledger that it lives, hears what operators say, and writes down who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from consumer.broker import Broker
from consumer.clock import DrivenClock
from consumer.errors import BrokerUnavailable
from consumer.ledger import Database
from consumer.ledger.handling import handlers, lanes
from consumer.ledger.handling.handlers import ALL, Paused
from consumer.ledger.tables import HandlerRow, RunStatus
from consumer.plugin import Context, Event, handles
from consumer.retry import Failure
from consumer.work.dispatch.breaker import Breaker
from consumer.work.execution.loop_pool import Harm
from consumer.work.outcome import Failed, Outcome, Succeeded
from consumer.work.rounds import housekeeping
from tests.support.ports import eventually
from tests.work.rounds.test_a_round_takes_stores_and_commits import FIRST, Bench
from tests.work.telling.test_the_figures_are_what_happened import result
from tests.work.workshop import Workshop

AT = datetime(2026, 1, 1, tzinfo=UTC)
HANDLERS = HandlerRow.__table__
NAMES = ("test:ship", "test:note")
PAUSED = Paused(frozenset({("test:ship", ALL)}))


@handles("order.paid", name="test:ship")
async def ship(event: Event, ctx: Context) -> None:
    """Nothing."""


@handles("order.paid", name="test:note", transactional=True)
async def note(event: Event, ctx: Context) -> None:
    """Nothing."""


@pytest.fixture
def shop(sqlite_ledger: Database, broker: Broker) -> Workshop:
    return Workshop(sqlite_ledger, broker, [ship, note], clock=DrivenClock(AT))


async def paused(database: Database, name: str) -> None:
    """An operator pauses it."""
    async with database.transaction() as session:
        assert await handlers.pause(session, name, by="op", reason="looks odd", now=AT)


async def column(database: Database, name: str) -> dict[str, Any]:
    """What the ledger has in it, by handler."""
    async with database.reading() as session:
        rows = await session.execute(select(HANDLERS.c.name, HANDLERS.c[name]))
        return {row[0]: row[1] for row in rows}


# case: H9
async def test_what_is_paused_already_is_paused_before_its_first_batch(shop: Workshop) -> None:
    first, second = shop.worker(), shop.worker()
    await first._housekeeping.register(asyncio.Event())
    assert set(await column(shop.database, "last_seen_at")) == set(NAMES)
    await paused(shop.database, "test:ship")
    await second._housekeeping.register(asyncio.Event())
    assert second._dispatcher.paused == second._housekeeping._ingest.paused == PAUSED
    assert first._dispatcher.paused == Paused()


# case: H9
async def test_what_is_paused_meanwhile_is_heard_of_by_the_next_round(shop: Workshop) -> None:
    worker = shop.worker()
    await worker._housekeeping.register(asyncio.Event())
    await paused(shop.database, "test:note")
    worker._pauser._unstored["test:ship", ALL] = "5 runs dead in a row"
    await worker._housekeeping._tidy(renew=False)
    assert worker._dispatcher.paused == worker._housekeeping._ingest.paused
    assert worker._dispatcher.paused.wholly == set(NAMES)
    assert (await column(shop.database, "paused_by"))["test:ship"] == "guard"
    async with shop.database.transaction() as session:
        await handlers.resume(session, "test:note")
    await worker._housekeeping._tidy(renew=False)
    assert worker._dispatcher.paused == PAUSED


# case: R14
async def test_it_says_that_it_lives_with_every_renewal(shop: Workshop) -> None:
    worker, clock = shop.worker(), shop.clock
    assert isinstance(clock, DrivenClock)
    await worker._housekeeping.register(asyncio.Event())
    for renew, seen_at in ((False, AT), (True, AT + timedelta(seconds=20))):
        clock.advance(10)
        await worker._housekeeping._tidy(renew=renew)
        assert await column(shop.database, "last_seen_at") == dict.fromkeys(NAMES, seen_at)


async def test_what_waits_behind_nothing_is_looked_for_lane_by_lane(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    pages: list[Any] = [SimpleNamespace(stranded=[], after=one) for one in (("default", "order:1", "x"), None)]

    async def stranded(_: object, after: object, *, held: object) -> Any:
        asked.append(after)
        return pages[(len(asked) - 1) % 2]

    monkeypatch.setattr(lanes, "stranded", stranded)
    worker = shop.worker()
    for _ in range(3):
        await worker._housekeeping._tidy(renew=False)
    assert asked == [None, ("default", "order:1", "x"), None]


async def test_who_waits_for_what_does_not_answer_is_written_down_when_it_changes(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: R11
    worker, open_now = shop.worker(), dict[str, Breaker]()
    await worker._housekeeping.register(asyncio.Event())
    written: list[tuple[str, datetime | None]] = []
    real = handlers.set_waiting

    async def counted(session: Any, name: str, *, since: datetime | None, reason: str | None) -> bool:
        written.append((name, since))
        return await real(session, name, since=since, reason=reason)

    def opened() -> Mapping[str, Breaker]:
        return dict(open_now)

    monkeypatch.setattr(handlers, "set_waiting", counted)
    monkeypatch.setattr(worker._housekeeping._breakers, "open", opened)
    away = Breaker(open_since=AT, until=AT, reason="refused", failing="default/evt_1")

    async def tidied() -> list[tuple[str, datetime | None]]:
        written.clear()
        await worker._housekeeping._tidy(renew=False)
        return written

    assert await tidied() == []
    open_now["test:ship"] = away
    assert await tidied() == [("test:ship", AT)]
    assert (await column(shop.database, "waiting_reason"))["test:ship"] == "refused (only default/evt_1 was tried)"
    assert await tidied() == []
    open_now["test:ship"] = Breaker(open_since=AT, until=AT, reason="refused", failing="x", is_alone=False)
    assert await tidied() == [("test:ship", AT)], "another run failed too"
    open_now.clear()
    assert await tidied() == [("test:ship", None)]
    assert await column(shop.database, "waiting_since") == dict.fromkeys(NAMES)
    assert await tidied() == []


# case: R11, O8
async def test_what_a_worker_that_is_gone_wrote_down_ends_when_another_gets_through(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, clock = Breaker(open_since=AT, until=AT, reason="refused"), shop.clock
    assert isinstance(clock, DrivenClock)
    gone, other = shop.worker(), shop.worker()
    await gone._housekeeping.register(asyncio.Event())
    monkeypatch.setattr(gone._housekeeping._breakers, "open", lambda: {"test:ship": away})
    await gone._housekeeping._tidy(renew=False)  # and is killed

    async def waits_after(outcome: Outcome, *names: str) -> bool:
        clock.advance(1)
        for handler in other._housekeeping._registry.handlers:
            if handler.name in names:
                other._housekeeping._breakers.judge(
                    handler, result(RunStatus.SUCCEEDED).finish.run, outcome, clock.now()
                )
        await other._housekeeping._tidy(renew=True)
        return (await column(shop.database, "waiting_since"))["test:ship"] is not None

    refused = Failed(Failure("handler_failed", "refused", unreachable=True), "f")
    assert await waits_after(Succeeded())
    assert await waits_after(Succeeded(), "test:note")
    assert await waits_after(refused, "test:ship")
    assert await waits_after(Failed(Failure("handler_failed", "a bug"), "f"), "test:ship"), "it may not have asked"
    assert not await waits_after(Succeeded(), "test:ship")
    async with shop.database.transaction() as session:
        await handlers.set_waiting(session, "test:ship", since=clock.now() + timedelta(minutes=1), reason="refused")
    await other._housekeeping._tidy(renew=True)
    assert (await column(shop.database, "waiting_since"))["test:ship"], "it got through before that"


# case: R11, O8
async def test_what_another_took_back_is_written_down_again_while_it_lasts(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last call was answered a moment after this one's first was not, and it has none to make any more."""
    clock = shop.clock
    assert isinstance(clock, DrivenClock)
    waiting, other = shop.worker(), shop.worker()
    await waiting._housekeeping.register(asyncio.Event())
    away = Breaker(open_since=clock.now(), until=clock.now(), reason="refused")
    monkeypatch.setattr(waiting._housekeeping._breakers, "open", lambda: {"test:ship": away})
    await waiting._housekeeping._tidy(renew=True)
    clock.advance(1)
    for handler in other._housekeeping._registry.handlers:
        other._housekeeping._breakers.judge(handler, result(RunStatus.SUCCEEDED).finish.run, Succeeded(), clock.now())
    waits = []
    for worker in (other, waiting, other, waiting):
        await worker._housekeeping._tidy(renew=True)
        waits.append((await column(shop.database, "waiting_since"))["test:ship"] is not None)
    assert waits == [False, True, True, True]


async def test_it_takes_records_from_joining_until_it_ends(sqlite_ledger: Database, broker: Broker) -> None:
    shop = Workshop(sqlite_ledger, broker, [ship])
    async with shop.working() as worker:
        await eventually(lambda: worker.polls)
    assert not worker.polls


# case: O2
async def test_a_poll_that_succeeds_after_all_was_committed_ends_what_was_told() -> None:
    bench = Bench()
    await bench.poll([FIRST])
    await bench.poll(BrokerUnavailable())
    assert bench.told() == "broker_unavailable"
    await bench.poll([])
    assert bench.told() is None


# case: H4, R10
async def test_its_parts_are_told_what_concerns_them(shop: Workshop) -> None:
    worker = shop.worker()
    for _ in range(3):
        worker._watchdog._on_cut(Harm(handler="test:note", seconds=5.0, at="here"))
    assert "test:note" in worker._dispatcher._hung
    assert worker._pauser.unstored == {("test:note", ALL)}
    for status, wakes in ((RunStatus.SUCCEEDED, False), (RunStatus.RETRYING, False), (RunStatus.DEAD, True)):
        worker._dispatcher._observe(result(status, "rejected"))
        assert worker._dead_letters._wake.is_set() is wakes


# case: H9
async def test_one_that_pauses_itself_while_the_ledger_is_asked_stays_paused(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, real = shop.worker(), lanes.stranded
    await worker._housekeeping.register(asyncio.Event())

    async def stranded(*given: Any, **more: Any) -> Any:
        worker._pauser._pause("test:ship", "5 runs dead in a row")
        return await real(*given, **more)

    monkeypatch.setattr(lanes, "stranded", stranded)
    await worker._housekeeping._tidy(renew=False)
    assert worker._dispatcher.paused == worker._housekeeping._ingest.paused == PAUSED


# case: O8
async def test_a_log_that_hangs_holds_up_no_claim(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, stop, rounds = shop.worker(), asyncio.Event(), list[bool]()

    async def hangs() -> None:
        await asyncio.Event().wait()

    async def tidy(*, renew: bool) -> None:
        rounds.append(renew)

    monkeypatch.setattr(housekeeping, "HOUSEKEEPING_S", 0.01)
    monkeypatch.setattr(worker._backlog, "_lag", hangs)
    monkeypatch.setattr(worker._housekeeping, "_tidy", tidy)
    parts = [asyncio.create_task(part(stop)) for part in (worker._backlog.watch_log, worker._housekeeping.run)]
    await eventually(lambda: rounds.count(True) == 3)
    for part in parts:
        part.cancel()
