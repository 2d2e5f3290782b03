"""House is kept at its times, whatever fails, and what it finds is told to the parts it concerns."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from consumer.broker import Broker
from consumer.broker.base import Lag
from consumer.clock import DrivenClock
from consumer.errors import BrokerUnavailable, LedgerError, LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.ledger.handling.handlers import ALL, Paused
from consumer.telemetry.loop_watch import Blocked
from consumer.work import worker as worker_module
from consumer.work.dispatch import dispatcher
from consumer.work.rounds import housekeeping as module
from consumer.work.rounds.backlog import Backlog
from consumer.work.rounds.housekeeping import RENEW_EVERY, Housekeeping
from tests.support.ports import eventually
from tests.work.outbound.test_one_relay_publishes import emit
from tests.work.rounds.test_a_round_takes_stores_and_commits import ZERO, Said, Step
from tests.work.workshop import Workshop


class Bench:
    """Housekeeping whose parts are made by hand; each of its rounds ends with one of these."""

    def __init__(self, *errors: LedgerError | None) -> None:
        self.ingest, self.dispatcher, self.breakers, self.pauser = (Said() for _ in range(4))
        nothing: Any = None
        parts: dict[str, Any] = {
            "ingest": self.ingest, "dispatcher": self.dispatcher, "breakers": self.breakers, "pauser": self.pauser,
        }  # fmt: skip
        self.house = House(
            database=nothing, registry=nothing, executor=nothing, position=nothing, backlog=nothing, observer=nothing,
            clock=DrivenClock(), **parts,
        )  # fmt: skip
        self.house.rounds, self.house.errors = [], list(errors)


class House(Housekeeping):
    """Housekeeping of which only the rounds are its own."""

    rounds: list[bool]
    errors: list[LedgerError | None]

    async def _tidy(self, *, renew: bool) -> None:
        self.rounds.append(renew)
        if error := self.errors.pop(0):
            raise error


async def test_that_it_lives_is_told_every_few_rounds_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOUSEKEEPING_S", 0)
    house = Bench(None, LedgerUnavailable(), None, None, None).house
    with capture_logs() as logs, pytest.raises(IndexError):
        await house.run(asyncio.Event())
    assert RENEW_EVERY == 4
    assert house.rounds == [True, False, False, False, True, False]
    assert [line["event"] for line in logs] == ["housekeeping_failed", "housekeeping_failed_over"]


async def test_housekeeping_that_fails_whenever_it_writes_is_said_as_what_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk that reads and takes no write: the rounds between wrote nothing, and said that it was over."""
    monkeypatch.setattr(module, "HOUSEKEEPING_S", 0)
    between: list[LedgerError | None] = [None] * (RENEW_EVERY - 1)
    house = Bench(LedgerUnavailable(), *between, LedgerUnavailable(), *between, None).house
    with capture_logs() as logs, pytest.raises(IndexError):
        await house.run(asyncio.Event())
    assert [line["event"] for line in logs] == ["housekeeping_failed", "housekeeping_failed_over"]


async def test_housekeeping_ends_with_its_round() -> None:
    house, stop = Bench(None).house, asyncio.Event()
    keeping = asyncio.create_task(house.run(stop))
    await asyncio.sleep(0)
    stop.set()
    async with asyncio.timeout(10):
        await keeping
    assert house.rounds == [True]


# case: H9
async def test_who_may_go_on_is_forgotten_by_the_guard_and_looked_for() -> None:
    bench = Bench()
    bench.house._honour(frozenset({("a", ALL), ("a", "far"), ("b", ALL)}))
    assert bench.ingest.paused == bench.dispatcher.paused
    assert bench.dispatcher.paused.wholly == {"a", "b"}
    assert (bench.pauser.calls, bench.dispatcher.calls) == ([], [])
    bench.house._honour(frozenset({("a", "far"), ("b", ALL)}))
    assert bench.ingest.paused == bench.dispatcher.paused == Paused(frozenset({("a", "far"), ("b", ALL)}))
    assert (bench.pauser.calls, bench.breakers.calls) == ([("resumed", "a", ALL)], [("forget", "a", ALL)])
    assert bench.dispatcher.calls == [("wake",)]
    bench.house._honour(frozenset({("a", "far"), ("b", ALL)}))
    assert len(bench.dispatcher.calls) == 1
    bench.pauser.on_pause("c", "far")
    assert bench.ingest.paused == bench.dispatcher.paused
    assert bench.dispatcher.paused.wholly == {"b", "c"}


async def test_how_far_it_is_behind_is_measured_and_what_keeps_it_from_that_is_said() -> None:
    observer, nothing, lag = Said(), cast("Any", None), Step({ZERO: Lag(3, 1.5)}, BrokerUnavailable(), {})
    backlog = Backlog(database=nothing, lag=lag.next, clock=DrivenClock(), observer=cast("Any", observer))
    await backlog.measure_log()
    assert observer.calls == [("lag", {ZERO: Lag(3, 1.5)})]
    with capture_logs() as logs:
        await backlog.measure_log()
        await backlog.measure_log()
    assert [line["event"] for line in logs] == ["lag_unknown", "lag_unknown_over"]


async def test_each_round_tells_the_guard_what_hangs_and_some_that_it_lives(
    sqlite_ledger: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Workshop(sqlite_ledger, broker, []).worker()
    told, hangs = Step(None), list[Any]()
    monkeypatch.setattr(handlers, "register", told.next)
    monkeypatch.setattr(worker._executor, "abandoned_by", lambda: {"shop:ship": 3})
    monkeypatch.setattr(worker._pauser, "abandoned", hangs.append)
    await worker._housekeeping._tidy(renew=False)
    assert (told.asked, hangs) == ([], [{"shop:ship": 3}])
    await worker._housekeeping._tidy(renew=True)
    assert (len(told.asked), len(hangs)) == (1, 2)


# case: G2
async def test_claims_are_renewed_whatever_house_keeping_waits_for(
    sqlite_ledger: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's open transaction, or a worker that stands still in its own, has locked a handler's row."""
    waits, is_let_go, renewed = asyncio.Event(), asyncio.Event(), Counter[str]()

    async def locked(*_: object) -> None:
        waits.set()
        await is_let_go.wait()

    monkeypatch.setattr(module, "HOUSEKEEPING_S", 0.05)
    monkeypatch.setattr(dispatcher, "CLAIM_LEASE_S", 0.2)
    async with Workshop(sqlite_ledger, broker, []).working() as worker:
        renew = worker._dispatcher.renew_claims

        async def counted() -> None:
            await renew()
            renewed["meanwhile"] += waits.is_set()

        monkeypatch.setattr(worker._dispatcher, "renew_claims", counted)
        await eventually(lambda: worker.polls)
        monkeypatch.setattr(handlers, "waiting_is_over", locked)
        try:
            await eventually(lambda: renewed["meanwhile"] > 2)
        finally:
            is_let_go.set()


async def test_what_waits_to_go_out_is_as_old_as_its_oldest(sqlite_ledger: Database, broker: Broker) -> None:
    clock = DrivenClock(datetime.now(UTC))
    shop = Workshop(sqlite_ledger, broker, [], clock=clock)
    worker = shop.worker()

    def shown() -> tuple[float | None, float | None]:
        value = shop.metrics.registry.get_sample_value
        return value("consumer_outbox_waiting"), value("consumer_outbox_oldest_seconds")

    await worker._backlog.measure_ledger()
    assert shown() == (0, 0)
    for number in range(2):
        await emit(sqlite_ledger, number)  # two hours ago
    await worker._backlog.measure_ledger()
    waiting, oldest_s = shown()
    assert waiting == 2
    assert oldest_s == pytest.approx(timedelta(hours=2).total_seconds(), abs=60)


async def test_what_a_thread_saw_is_heard_on_the_loop_unless_it_has_ended() -> None:
    heard: list[Blocked] = []
    found = Blocked(seconds=1.0, at="x", task=None)
    ended = asyncio.new_event_loop()
    ended.close()
    worker_module._call(ended, heard.append, found)
    worker_module._call(asyncio.get_running_loop(), heard.append, found)
    assert heard == []
    await asyncio.sleep(0)
    assert heard == [found]
