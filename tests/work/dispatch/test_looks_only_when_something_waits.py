"""A batch of which nothing is left to do sends the dispatcher to no look at the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from consumer.broker import Broker
from consumer.clock import DrivenClock
from consumer.errors import HandlerTimeout, LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.engine.database import HELD_MOST
from consumer.ledger.handling import events, queue, runs
from consumer.ledger.handling.handlers import ALL, Paused
from consumer.ledger.handling.runs import Finished
from consumer.plugin import Context, Event, Handler, handles
from consumer.retry import Failure
from consumer.work.dispatch import dispatcher as module
from consumer.work.dispatch.ahead import PATIENCE_S, SURE_S
from consumer.work.dispatch.breakers import Breakers
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.dispatch.result_writer import Result
from consumer.work.execution.claimed import Claimed
from consumer.work.outcome import Failed, Succeeded, failed
from consumer.work.registry import Registry
from tests.support.ports import eventually
from tests.work.dispatch.test_a_result_is_kept_until_the_ledger_has_it import HANDLER, result
from tests.work.workshop import Workshop, order_paid


async def test_what_is_done_with_its_batch_or_begun_wakes_nobody(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = 0
    wake = Dispatcher.wake

    def counted(self: Dispatcher) -> None:
        nonlocal woken
        woken += 1
        wake(self)

    @handles("order.paid", transactional=True)
    async def note(event: Event, ctx: Context) -> None:
        """Nothing."""

    @handles("order.paid")
    async def ship(event: Event, ctx: Context) -> None:
        """Nothing."""

    monkeypatch.setattr(Dispatcher, "wake", counted)
    done = Workshop(database, broker, [note])
    async with done.working():
        for number in range(3):
            await done.publish(order_paid(number))
            await eventually(partial(done.all_succeeded, number + 1))
    assert woken == 1, "that it is over"

    both = Workshop(database, broker, [note, ship])
    async with both.working():
        await both.publish(order_paid(3))
        await eventually(lambda: both.count("ship", "succeeded", 1))
        woken = 0
        await both.publish(order_paid(4))
        await eventually(lambda: both.count("ship", "succeeded", 2))
        assert woken == 0, "it was claimed as it came, and lets nothing go"
        await both.publish(order_paid(5, "order-5"), order_paid(6, "order-5"))
        await eventually(lambda: both.count("ship", "succeeded", 4))
        assert woken == 1, "the next of the lane is due"


# --- by hand ----------------------------------------------------------------------------------------------------

NOBODY: Any = None
SHIP = replace(HANDLER, concurrency=3)
NOTE = Handler(name="shop:note", types=("*",), function=HANDLER.function, transactional=True)
COUNT = replace(NOTE, name="shop:count")
SLIP = failed(ValueError("no"))


class Desk:
    """A dispatcher that has nothing to wait for, and what it told."""

    def __init__(self, *handlers: Handler, concurrency: int = 64) -> None:
        self.seen, self.breakers = list[Result](), Breakers()
        self.it = Dispatcher(
            database=NOBODY, registry=Registry(handlers or (SHIP, NOTE)), contexts=NOBODY, executor=NOBODY,
            breakers=self.breakers, clock=DrivenClock(), worker="w", concurrency=concurrency, observe=self.seen.append,
            on_emitted=lambda: None,
        )  # fmt: skip
        self.it._caught_up = {SHIP.name, NOTE.name}

    def wakes(self) -> bool:
        """Whether it was woken since this was asked last."""
        woken = self.it._wake.is_set()
        self.it._wake.clear()
        return woken


def test_what_is_stored_is_told_and_looked_behind_only_where_something_may_be_due() -> None:
    desk, done, slip = Desk(), result(Succeeded()), result(SLIP, number=2)
    for results, let_go, wakes in (([done], 0, False), ([done], 1, True), ([slip], 0, True), ([slip, done], 0, True)):
        desk.it._stored(results, Finished(let_go=let_go, stored=frozenset(one.run.id for one in results)))
        assert desk.wakes() is wakes
    assert [one.run.event_id for one in desk.seen] == ["evt_1", "evt_1", "evt_2", "evt_2", "evt_1"]
    desk.it._stored([slip, done], Finished(stored=frozenset({done.run.id})))
    assert desk.wakes()
    assert [one.run.event_id for one in desk.seen[5:]] == ["evt_1"], "the other was another worker's by then"


def test_what_is_over_is_counted_once_and_looked_behind_where_older_ones_wait() -> None:
    desk, run = Desk(), result(Succeeded()).run
    desk.it._claimed[run.id] = run
    desk.it._unstored[SHIP.name] = 2
    for _ in range(2):
        desk.it._forget([run])
        assert (desk.it._unstored[SHIP.name], desk.wakes()) == (1, False)
    desk.it._caught_up = {NOTE.name}
    desk.it._forget([run])
    assert desk.wakes()


# case: H4
def test_who_hung_or_was_cut_off_goes_one_at_a_time_until_it_does_not() -> None:
    desk = Desk()
    cut = Failed(Failure("handler_blocked", "it blocked"), "f")
    for outcome, hangs in ((failed(HandlerTimeout()), True), (SLIP, False), (cut, True), (Succeeded(), False)):
        desk.it._remember_hanging(SHIP, outcome)
        assert desk.it._room(SHIP, desk.it._clock.now()) == (1 if hangs else 3)
    desk.it.go_singly(SHIP.name)
    assert desk.it._room(SHIP, desk.it._clock.now()) == 1


@pytest.mark.parametrize(("busy", "others", "new", "room"), [(0, 0, 2, 2), (0, 0, 3, 3), (0, 0, 4, 3), (2, 0, 4, 1),
                                                           (3, 0, 1, 0), (0, 3, 4, 2), (1, 4, 1, 0)])  # fmt: skip
def test_there_is_room_for_what_the_handler_and_the_worker_may_begin(
    busy: int, others: int, new: int, room: int
) -> None:
    desk = Desk(concurrency=5)
    for begun in (desk.it._busy, desk.it._unstored):
        begun.update({SHIP.name: busy, NOTE.name: others})
    assert desk.it.room(SHIP.name, new) == room
    assert (SHIP.name in desk.it._caught_up) is (room >= new)


# case: R11
@pytest.mark.parametrize(("own", "others", "room"), [(0, 0, HELD_MOST), (1, 0, HELD_MOST - 1), (1, 2, HELD_MOST - 3),
                                                     (0, HELD_MOST, 0)])  # fmt: skip
def test_transactional_ones_share_a_few_connections_and_effects_have_their_room(
    own: int, others: int, room: int
) -> None:
    desk = Desk(SHIP, NOTE, COUNT)
    now = desk.it._clock.now()
    desk.it._busy.update({NOTE.name: own, COUNT.name: others})
    assert desk.it._room(NOTE, now) == room
    assert desk.it._room(SHIP, now) == SHIP.concurrency
    desk.it._busy[SHIP.name] = 1
    assert desk.it._room(NOTE, now) == room


@pytest.mark.parametrize("behind", [set(), {NOTE.name}, {COUNT.name}, {SHIP.name}])
def test_when_one_of_them_ends_who_waits_for_its_room_is_looked_for(behind: set[str]) -> None:
    desk = Desk(SHIP, NOTE, COUNT)
    desk.it._caught_up = {SHIP.name, NOTE.name, COUNT.name} - behind
    desk.it._busy.update({NOTE.name: 1, COUNT.name: HELD_MOST - 1})
    task: Any = None
    desk.it._ended(NOTE, task)
    assert desk.wakes() is bool(behind - {SHIP.name})


async def test_who_has_least_of_their_room_is_claimed_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, ledger, asked = Desk(NOTE, COUNT), cast(Any, Ledger()), list[tuple[str, int]]()
    now = desk.it._clock.now()

    async def next_due(*_: object) -> Any:
        return {NOTE.name: now - timedelta(hours=1), COUNT.name: now}

    async def claims_for(handler: Handler, limit: int) -> int:
        asked.append((handler.name, limit))
        desk.it._busy[handler.name] += limit
        return limit

    monkeypatch.setattr(desk.it, "_database", ledger)
    monkeypatch.setattr(desk.it, "_claim_for", claims_for)
    monkeypatch.setattr(queue, "next_due", next_due)
    desk.it._busy[NOTE.name] = HELD_MOST - 1
    await desk.it._claim()
    assert asked == [(COUNT.name, 1)]


# case: H9, R11
def test_there_is_no_room_for_what_may_not_begin() -> None:
    desk = Desk()
    assert [desk.it.room(name, 1) for name in (SHIP.name, NOTE.name, "shop:nobody")] == [1, 0, 0]
    desk.it.paused = Paused(frozenset({(SHIP.name, ALL)}))
    assert desk.it.room(SHIP.name, 1) == 0
    desk.it.paused = Paused()
    desk.it._is_stopping = True
    assert desk.it.room(SHIP.name, 1) == 0
    desk.it._is_stopping = False
    away = failed(ConnectionRefusedError())
    for _ in range(SHIP.breaker_after):
        desk.breakers.judge(SHIP, result(SLIP).run, away, desk.it._clock.now())
    assert desk.it.room(SHIP.name, 1) == 0
    desk.breakers.forget(SHIP.name)
    assert desk.it.room(SHIP.name, 1) == 1
    desk.it._caught_up = set()
    assert desk.it.room(SHIP.name, 1) == 0


# case: R11
def test_the_one_that_begins_while_the_breaker_is_half_open_is_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, begun = Desk(), list[str]()
    monkeypatch.setattr(desk.it, "_start", lambda handler, claimed: begun.append(claimed.run.event_id))
    away = failed(ConnectionRefusedError())
    for _ in range(SHIP.breaker_after):
        desk.breakers.judge(SHIP, result(SLIP).run, away, desk.it._clock.now())
    waiting = [Claimed(run=result(SLIP, number=number).run, event=order_paid(number), at_s=0.0) for number in range(3)]
    assert desk.it._take(SHIP, waiting) == 3
    assert begun == [], "it is open"
    assert isinstance(desk.it._clock, DrivenClock)
    desk.it._clock.advance(2.0)
    for _ in range(2):
        desk.it._start_waiting(SHIP)
        assert begun == ["evt_0"]


def test_what_another_may_have_by_now_is_not_begun_and_given_back_at_once() -> None:
    desk = Desk()
    assert isinstance(desk.it._clock, DrivenClock)
    desk.it._clock.advance(SURE_S + 1)
    desk.it._take(SHIP, [Claimed(run=result(SLIP).run, event=order_paid(1), at_s=0.0)])
    assert desk.wakes()
    assert desk.it._busy.total() == 0


@pytest.mark.parametrize("due_in_s", [None, 0.02, -5.0])
async def test_it_looks_again_when_woken_when_a_run_is_due_and_after_a_while(
    monkeypatch: pytest.MonkeyPatch, due_in_s: float | None
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 600.0 if due_in_s is not None else 0.02)
    monkeypatch.setattr(module, "QUIET_S", 600.0)
    desk = Desk()
    clock = desk.it._clock
    desk.it._upcoming = [] if due_in_s is None else [clock.now() + timedelta(seconds=due_in_s)]
    await asyncio.wait_for(desk.it._wait_for_work(), 10)
    desk.it._upcoming = [clock.now() + timedelta(seconds=600)]
    monkeypatch.setattr(desk.it._pace, "_first_s", 600.0)
    waiting = asyncio.create_task(desk.it._wait_for_work())
    done, _ = await asyncio.wait({waiting}, timeout=0.02)
    assert not done
    desk.it.wake()
    await asyncio.wait_for(waiting, 10)


class Ledger:
    """Transactions of nothing."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """As a Database does."""
        yield

    reading = transaction


# case: H9
async def test_a_ledger_that_cannot_be_claimed_from_is_said_once_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, answers = Desk(), [LedgerUnavailable(), LedgerUnavailable(), {}]
    ledger: Any = Ledger()
    naps: list[float] = []

    async def next_due(*_: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleeps(seconds: float) -> None:
        naps.append(seconds)

    monkeypatch.setattr(desk.it, "_database", ledger)
    monkeypatch.setattr(desk.it._clock, "sleep", sleeps)
    monkeypatch.setattr(queue, "next_due", next_due)
    with capture_logs() as logs:
        assert [await desk.it._claim() for _ in range(3)] == [0, 0, 0]
    assert naps == [module.RETRY_S] * 2
    assert [line["event"] for line in logs] == ["claim_failed", "claim_failed_over"]


@pytest.mark.parametrize(("found", "is_caught_up"), [(0, True), (2, True), (3, False)])
async def test_who_found_less_than_there_is_room_for_has_caught_up_and_knows_when_the_next_is_due(
    monkeypatch: pytest.MonkeyPatch, found: int, is_caught_up: bool
) -> None:
    desk, ledger = Desk(), cast(Any, Ledger())
    now = desk.it._clock.now()
    due = {SHIP.name: now, NOTE.name: now + timedelta(seconds=7), "shop:gone": now}
    claimed = [result(SLIP, number=number).run for number in range(found)]

    async def next_due(*_: object) -> Any:
        return due

    async def claims(_: object, *, handler: str, worker: str, limit: int, **__: object) -> Any:
        assert (handler, worker, limit) == (SHIP.name, "w", SHIP.concurrency)
        return claimed

    async def loads(_: object, ids: set[tuple[str, str]]) -> Any:
        assert ids == {(one.application, one.event_id) for one in claimed}
        return dict.fromkeys(ids, order_paid(1))

    begun: list[str] = []
    monkeypatch.setattr(desk.it, "_database", ledger)
    monkeypatch.setattr(desk.it, "_start", lambda handler, one: begun.append(one.run.event_id))
    monkeypatch.setattr(queue, "next_due", next_due)
    monkeypatch.setattr(runs, "claim", claims)
    monkeypatch.setattr(events, "load", loads)
    assert await desk.it._claim() == found
    assert begun == [one.event_id for one in claimed]
    assert desk.it._upcoming == [due[NOTE.name]]
    assert desk.it._caught_up == ({SHIP.name, NOTE.name} if is_caught_up else {NOTE.name})


async def test_careful_a_look_that_began_before_more_was_added_does_not_say_that_nothing_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever was added: by a replay, by a batch taken singly, or as ever."""
    desk, ledger, over = Desk(), cast(Any, Ledger()), asyncio.Event()
    desk.it.is_careful = True
    looks = list[int]()

    async def next_due(*_: object) -> Any:
        looks.append(1)
        if len(looks) == 1:
            desk.it.wake()  # a batch was stored, after this look read what is due
        return {}

    async def suspected(*_: object) -> Any:
        return frozenset()

    async def rested(*_: object) -> None:
        await asyncio.sleep(0)
        over.set()

    async def waits() -> bool:
        over.clear()
        await desk.it.keeps_up(over)
        return over.is_set()

    monkeypatch.setattr(desk.it, "_database", ledger)
    monkeypatch.setattr(queue, "next_due", next_due)
    monkeypatch.setattr(queue, "suspected", suspected)
    monkeypatch.setattr(module, "rest", rested)
    await desk.it._claim()
    assert await waits(), "for a look that begins now"
    await desk.it._claim()
    assert not await waits()
    desk.it._ahead.put(Claimed(run=result(SLIP).run, event=order_paid(1), at_s=desk.it._clock.monotonic()))
    assert await waits(), "for what was claimed ahead before it was careful"


@pytest.mark.parametrize("why", [None, "paused", "paused-for-it", "open", "failing", "stuck", "lost"])
async def test_what_waits_is_given_back_for_each_reason_alone(monkeypatch: pytest.MonkeyPatch, why: str | None) -> None:
    # case: H9, R11
    desk, back = Desk(), list[tuple[str, list[Any]]]()
    ledger: Any = Ledger()
    clock = desk.it._clock
    assert isinstance(clock, DrivenClock)

    async def gives_back(_: object, ids: list[Any], *, worker: str) -> None:
        back.append((worker, ids))

    monkeypatch.setattr(desk.it, "_database", ledger)
    monkeypatch.setattr(runs, "give_back", gives_back)
    desk.it._busy[SHIP.name] = SHIP.concurrency
    run = result(SLIP).run
    desk.it._take(SHIP, [Claimed(run=run, event=order_paid(1), at_s=clock.monotonic())])
    match why:
        case "paused":
            desk.it.paused = Paused(frozenset({(SHIP.name, ALL)}))
        case "paused-for-it":
            desk.it.paused = Paused(frozenset({(SHIP.name, run.application), (NOTE.name, ALL)}))
        case "open":
            for _ in range(SHIP.breaker_after):
                desk.breakers.judge(SHIP, result(SLIP).run, failed(ConnectionRefusedError()), clock.now())
        case "failing":
            desk.it._ahead.failed(SHIP.name)
        case "stuck":
            clock.advance(PATIENCE_S + 0.1)
            desk.it._renewed_s = clock.monotonic()
        case "lost":
            monkeypatch.setattr(desk.it._ahead, "is_stuck", lambda *_: False)
            clock.advance(SURE_S + 0.1)
    desk.wakes()
    await desk.it._give_back_what_may_not_start()
    assert back == ([("w", [run.id])] if why else [])
    assert (run.id in desk.it._claimed) is (why is None)
    assert desk.wakes() is (why is not None)
    assert desk.it._ahead.count(SHIP.name) == (1 if why is None else 0)


# case: H9
async def test_what_its_application_is_paused_for_is_not_begun_and_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claimed before it was heard of, both are given back: the next claim takes the other's alone."""
    desk, begun = Desk(), list[str]()
    monkeypatch.setattr(desk.it, "_start", lambda handler, one: begun.append(one.run.application))
    both = [replace(result(SLIP).run, application=one) for one in ("far", "near")]
    desk.it.paused = Paused(frozenset({(SHIP.name, "far")}))
    desk.it._take(SHIP, [Claimed(run=one, event=order_paid(1), at_s=desk.it._clock.monotonic()) for one in both])
    assert (begun, desk.wakes()) == ([], True)
    desk.it._ahead.clear(SHIP.name)
    desk.it._claimed.clear()
    desk.it._take(SHIP, [Claimed(run=both[1], event=order_paid(1), at_s=desk.it._clock.monotonic())])
    assert begun == ["near"]


@pytest.mark.parametrize(
    ("busy", "is_caught_up", "wakes"), [(1, False, True), (1, True, False), (SHIP.concurrency + 1, False, False)]
)
async def test_who_has_room_again_looks_for_older_ones_where_some_may_wait(
    busy: int, is_caught_up: bool, wakes: bool
) -> None:
    desk = Desk()
    desk.it._caught_up = {SHIP.name} if is_caught_up else set()
    desk.it._busy[SHIP.name], desk.it._unstored[SHIP.name] = busy, busy - 1
    task = asyncio.create_task(asyncio.sleep(0))
    desk.it._tasks.add(task)
    await task
    desk.it._ended(SHIP, task)
    assert desk.it._tasks == set()
    assert desk.it._busy[SHIP.name] == busy - 1
    assert desk.wakes() is wakes


async def test_what_wakes_it_during_a_look_is_looked_for_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, stop, woken = Desk(), asyncio.Event(), list[bool]()

    async def claims() -> int:
        woken.append(desk.it._wake.is_set())
        desk.it.wake()
        if len(woken) == 3:
            stop.set()
        return 0

    monkeypatch.setattr(desk.it, "_claim", claims)
    async with asyncio.timeout(10):
        await desk.it.run(stop, 1.0)
    assert woken == [False] * 3


# case: H9
async def test_a_projection_that_was_paused_since_its_claim_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, ledger, back = Desk(), cast(Any, Ledger()), list[Any]()
    run = result(SLIP).run
    desk.it._claimed[run.id] = run
    desk.it.paused = Paused(frozenset({(NOTE.name, ALL)}))

    async def gives_back(_: object, ids: list[Any], *, worker: str) -> None:
        back.append((ids, worker))

    monkeypatch.setattr(desk.it, "_database", ledger)
    monkeypatch.setattr(runs, "give_back", gives_back)
    await desk.it._work(NOTE, run, order_paid(1))
    assert back == [([run.id], "w")]
    assert desk.it._claimed == {}
