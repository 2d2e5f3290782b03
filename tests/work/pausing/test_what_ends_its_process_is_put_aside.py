"""A run whose process ends with it (a crash in C code, no memory, `os._exit`) is found out by working on one at a time,
is put off each time, and is dead after a few; the others go on, and a handler that does it again is paused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker import Broker
from consumer.clock import Clock, DrivenClock, rest
from consumer.console.operators import pausing
from consumer.errors import HandlerEndsProcess
from consumer.ledger import Database, processes
from consumer.ledger.handling import dead, events, handlers, queue, runs
from consumer.ledger.handling.handlers import ALL, Paused
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.tables import AttemptRow, RunRow, RunStatus
from consumer.plugin import Context, Event, Handler, declared, handles
from consumer.work.dispatch import dispatcher
from consumer.work.dispatch.breakers import Breakers
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.dispatch.left_behind import AGAIN_S, ENDED_MAX, LATELY
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor
from consumer.work.ingest.ingest import Ingest, Taken, Way
from consumer.work.registry import Registry
from consumer.work.worker import WorkerConfig
from tests.support.handling.projections import START
from tests.support.ports import eventually
from tests.work.workshop import TOPIC, Workshop, order_paid

RUNS = RunRow.__table__
CALLED: list[str] = []
RESTART_S = 5.0
BATCH = 4
LOOK_TAKES_S = 1.0


@handles("order.paid", name="test:ships", attempts=1)
async def ships(event: Event, ctx: Context) -> None:
    """What ends its process never comes so far here: the one that dies is played by a claim that nobody ends."""
    CALLED.append(event.id)


@handles("order.paid", name="test:bills")
async def bills(event: Event, ctx: Context) -> None:
    """Another, that does no harm."""


class Scene:
    """A ledger with workers that die, and one that does not."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = DrivenClock(START)
        self.deadly: list[str] = []
        self.handler, self.other = _declared(ships), _declared(bills)
        self._executor = Executor()
        self.dispatcher = self.worker("lives")
        CALLED.clear()

    def worker(self, name: str) -> Dispatcher:
        """One of them."""
        return Dispatcher(
            database=self.database,
            registry=Registry([self.handler, self.other]),
            contexts=Contexts(clock=self.clock),
            executor=self._executor,
            breakers=Breakers(),
            clock=self.clock,
            worker=name,
            observe=lambda _: None,
            on_emitted=lambda: None,
            on_deadly=self._pause,
        )

    def _pause(self, handler: str) -> None:
        self.deadly.append(handler)
        self.dispatcher.paused = Paused(self.dispatcher.paused.of | {(handler, ALL)})

    async def close(self) -> None:
        await self._executor.pool.close()

    async def come(self, *numbers: int, handler: Handler | None = None) -> None:
        """Runs for these, that nobody has begun."""
        found, name = [order_paid(number) for number in numbers], (handler or self.handler).name
        now = self.clock.now()
        async with self.database.transaction() as session:
            new = await events.record(session, found, now)
            await runs.add(session, [
                runs.Run(application=one.application, event_id=one.id, handler=name, key=one.key,
                         seq=new[one.application, one.id], status=RunStatus.RETRYING, blocking=True, next_at=now)
                for one in found
            ], now)  # fmt: skip

    async def taken(self, worker: str, *, limit: int = 1, alone: bool = True) -> Sequence[runs.ClaimedRun]:
        """A worker takes what is due."""
        async with self.database.transaction() as session:
            return await runs.claim(session, handler=self.handler.name, worker=worker, limit=limit,
                                    now=self.clock.now(), lease_s=CLAIM_LEASE_S, alone=alone)  # fmt: skip

    async def die(self, *, limit: int = 1, alone: bool = True) -> None:
        """A worker takes what is due, and is gone."""
        await self.taken("dead", limit=limit, alone=alone)
        self.clock.advance(CLAIM_LEASE_S + 1)

    async def beat(self, worker: str) -> None:
        """A worker tells the ledger that it lives."""
        now = self.clock.now()
        pulse = processes.Pulse(process=worker, role="work", host="shop", pid=1, version="1", started_at=now,
                                ready=True, since=now)  # fmt: skip
        async with self.database.transaction() as session:
            await processes.beat(session, [pulse], now)

    async def look(self) -> None:
        """The one that lives looks, and looks again when what was put off is due."""
        await self.dispatcher.once()
        self.clock.advance(AGAIN_S + 1)

    async def standing(self) -> list[tuple[str, str, int]]:
        """Each run: its event, how it stands, its attempts."""
        async with self.database.reading() as session:
            found = await session.execute(select(RUNS.c.event_id, RUNS.c.status, RUNS.c.attempts).order_by(RUNS.c.seq))
            return [(event, str(status), attempts) for event, status, attempts in found]


def _declared(function: Callable[..., object]) -> Handler:
    found = declared(function)
    assert found is not None
    return found


async def _codes(database: Database) -> Sequence[str | None]:
    async with database.reading() as session:
        rows = (await session.execute(select(AttemptRow))).scalars().all()
    return [row.code for row in rows]


@pytest.fixture
async def scene(database: Database) -> AsyncIterator[Scene]:
    """Its living worker goes as ever: what was left behind alone is known by its mark."""
    found = Scene(database)
    yield found
    await found.close()


async def test_a_death_puts_off_the_run_that_was_at_work_and_costs_no_attempt(scene: Scene) -> None:
    await scene.come(1)
    await scene.die()
    await scene.look()
    assert CALLED == []
    assert await scene.standing() == [("evt_1", "retrying", 0)]
    assert await _codes(scene.database) == [HandlerEndsProcess.code]
    await scene.look()
    assert await scene.standing() == [("evt_1", "succeeded", 1)]


async def test_after_a_few_it_is_dead_and_the_others_go_on(scene: Scene) -> None:
    await scene.come(1)
    for _ in range(ENDED_MAX):
        await scene.die()
        await scene.look()
    await scene.come(2)
    await scene.look()
    assert await scene.standing() == [("evt_1", "dead", 1), ("evt_2", "succeeded", 1)]
    assert (CALLED, scene.deadly) == (["evt_2"], [])
    async with scene.database.reading() as session:
        [found] = await dead.search(session, dead.DeadFilter())
    assert (found.code, found.handler) == (HandlerEndsProcess.code, "test:ships")
    assert "last dead" in (found.reason or "")


async def test_a_second_event_is_dead_too_and_pauses_the_handler(scene: Scene) -> None:
    for number in (1, 2):
        await scene.come(number)
        for _ in range(ENDED_MAX):
            await scene.die()
            await scene.look()
    assert scene.deadly == ["test:ships"]
    assert [status for _, status, _ in await scene.standing()] == ["dead", "dead"]
    scene.dispatcher.paused = Paused()
    scene.clock.advance(LATELY.total_seconds())
    await scene.come(3)
    for _ in range(ENDED_MAX):
        await scene.die()
        await scene.look()
    assert scene.deadly == ["test:ships"], "what was long ago counts no more"


async def test_one_that_does_it_on_every_event_is_paused_however_many_wait(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever a careful worker begins, it dies of. More come all the time, and the same few are tried again."""
    begun = list[str]()
    monkeypatch.setattr(Dispatcher, "_start", lambda _, __, claimed: begun.append(claimed.run.event_id))
    await scene.come(*range(1, 31))
    for number in range(40):
        worker, died = scene.worker(f"worker-{number}"), len(begun)
        worker.is_careful = True
        await scene.come(100 + number)
        while await worker.once() and len(begun) == died:
            pass
        if scene.deadly:
            break
        scene.clock.advance(RESTART_S)
    assert scene.deadly == ["test:ships"]
    assert [event for event, status, _ in await scene.standing() if status == "dead"] == ["evt_1", "evt_2"]
    assert len(set(begun)) < 15, "as many as die while the first is held"


async def test_other_handlers_go_first(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what may be deadly is due for longer; but not for ever, where others come without end."""
    begun = list[str]()
    monkeypatch.setattr(Dispatcher, "_start", lambda _, handler, __: begun.append(handler.name))
    await scene.come(1, 2)
    await scene.die()
    await scene.come(3, handler=scene.other)
    for young in (True, False):
        worker = scene.worker(f"young: {young}")
        worker.is_careful = True
        if not young:
            scene.clock.advance(AGAIN_S)
            await worker.once()  # of the one that was left behind it says so
        await worker.once()
    assert begun == [scene.other.name, scene.handler.name]


async def test_a_dead_one_that_is_redriven_begins_anew(scene: Scene) -> None:
    """It has all its deaths again, and is not another event to itself: one death more costs it little, and pauses
    nobody."""
    await scene.come(1)
    for _ in range(2):
        for _ in range(ENDED_MAX):
            assert [status for _, status, _ in await scene.standing()] == ["retrying"]
            await scene.die()
            await scene.look()
        assert [status for _, status, _ in await scene.standing()] == ["dead"]
        async with scene.database.transaction() as session:
            found = await dead.search(session, dead.DeadFilter())
            await dead.redrive(session, found, by="me", reason="mended", now=scene.clock.now())
    assert scene.deadly == []


async def test_who_worked_on_several_says_nothing_of_any(scene: Scene) -> None:
    """Killed now and then, by whatever it was: all are begun again, and none has lost its only attempt."""
    await scene.come(*range(20))
    for _ in range(ENDED_MAX + 1):
        await scene.die(limit=20, alone=False)
    scene.dispatcher.is_careful = True
    for _ in range(20):
        await scene.dispatcher.once()
    assert {(status, attempts) for _, status, attempts in await scene.standing()} == {("succeeded", 1)}
    assert await _codes(scene.database) == []


async def test_a_success_counts_that_comes_after_its_claim_was_over(scene: Scene) -> None:
    """The worker had only stood still."""
    await scene.come(1)
    [run] = await scene.taken("stands still")
    scene.clock.advance(CLAIM_LEASE_S + 1)
    await scene.dispatcher.once()
    assert await scene.standing() == [("evt_1", "retrying", 0)]
    async with scene.database.transaction() as session:
        await runs.finish(session, [runs.Finish(run=run, status=RunStatus.SUCCEEDED, blocking=False, attempts=1)],
                          worker="stands still", now=scene.clock.now())  # fmt: skip
    scene.clock.advance(AGAIN_S + 1)
    await scene.dispatcher.once()
    assert (CALLED, await scene.standing()) == ([], [("evt_1", "succeeded", 1)])


async def test_a_claim_that_was_given_back_was_no_death(scene: Scene) -> None:
    await scene.come(1)
    [run] = await scene.taken("stops")
    async with scene.database.transaction() as session:
        await runs.give_back(session, [run.id], worker="stops")
    await scene.die(alone=False)
    await scene.dispatcher.once()
    assert await scene.standing() == [("evt_1", "succeeded", 1)]


async def test_who_lives_on_has_not_died(scene: Scene) -> None:
    """Its claim ended all the same: it could not renew it, or forgot the run, for its transaction failed."""
    await scene.come(1)
    await scene.die()
    await scene.beat("dead")
    await scene.dispatcher.once()
    assert await scene.standing() == [("evt_1", "succeeded", 1)]
    assert await _codes(scene.database) == []


@pytest.mark.parametrize("comes_back", [True, False])
async def test_who_stood_still_and_comes_back_has_not_died(scene: Scene, comes_back: bool) -> None:
    """Each time another does so, it may be taken for dead at first. What it told before says nothing."""
    await scene.come(1)
    for number in range(ENDED_MAX + 1):
        await scene.beat(worker := f"worker-{number}")
        await scene.taken(worker)
        scene.clock.advance(CLAIM_LEASE_S + 1)
        await scene.dispatcher.once()
        scene.clock.advance(1)
        if comes_back:
            await scene.beat(worker)
        scene.clock.advance(AGAIN_S)
    [(_, status, _)] = await scene.standing()
    assert status == ("retrying" if comes_back else "dead")


async def test_at_work_alone_is_no_error(scene: Scene) -> None:
    """It says what the last attempt failed of, and nothing of a first one."""

    async def is_said(code: str | None) -> bool:
        async with scene.database.reading() as session:
            failing = await queue.failing(session)
            return await session.scalar(select(RUNS.c.code)) == code and bool(failing) == bool(code)

    await scene.come(1)
    [run] = await scene.taken("careful")
    assert await is_said(None)
    failed = runs.Finish(run=run, status=RunStatus.RETRYING, blocking=True, attempts=1, code="boom",
                         next_at=scene.clock.now())  # fmt: skip
    async with scene.database.transaction() as session:
        await runs.finish(session, [failed], worker="careful", now=scene.clock.now())
    await scene.taken("careful")
    assert await is_said("boom")


@pytest.mark.parametrize("over", [True, False])
async def test_what_was_left_before_a_resume_is_begun_at_once(scene: Scene, over: bool) -> None:
    """Somebody has seen to its handler. One that is at work meanwhile stays its worker's."""
    async with scene.database.transaction() as session:
        await handlers.register(session, [scene.handler], scene.clock.now())
    await scene.come(1)
    await scene.taken("careful")
    scene.clock.advance(CLAIM_LEASE_S + 1 if over else 1)
    async with scene.database.transaction() as session:
        for change in (pausing.pause, pausing.resume):
            await change(session, scene.handler.name, by="me", reason="mended", now=scene.clock.now())
    await scene.dispatcher.once()
    assert await scene.standing() == [("evt_1", "succeeded", 1) if over else ("evt_1", "retrying", 0)]
    assert len(CALLED) == int(over)


async def test_who_was_stopped_has_not_died(scene: Scene) -> None:
    """It ended as it was told, and could not give its run back."""
    await scene.beat("dead")
    await scene.come(1)
    await scene.die()
    async with scene.database.transaction() as session:
        await processes.ended(session, "dead", scene.clock.now())
    await scene.dispatcher.once()
    assert await scene.standing() == [("evt_1", "succeeded", 1)]


async def test_a_careful_worker_leaves_its_mark(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It claims one, and by the ledger it is told from all that others claim."""
    await scene.come(1, 2)
    scene.dispatcher.is_careful = True
    monkeypatch.setattr(scene.dispatcher, "_start", lambda *_: None)  # it ends before its run does
    await scene.dispatcher.once()
    async with scene.database.reading() as session:
        found = await session.execute(select(RUNS.c.claimed_by, RUNS.c.code).order_by(RUNS.c.seq))
        assert [tuple(row) for row in found] == [(f"lives{runs.ALONE}", None), (None, None)]


async def test_a_mark_ends_with_care(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that takes longer is not alone any more: others have begun, and one of those may end the process."""
    await scene.come(1)
    worker = scene.worker("goes on")
    monkeypatch.setattr(worker, "_start", lambda *_: None)
    worker.is_careful = True
    await worker.once()
    for is_careful, mark in ((True, runs.ALONE), (False, "")):
        worker.is_careful = is_careful
        await worker.renew_claims()
        async with scene.database.reading() as session:
            assert await session.scalar(select(RUNS.c.claimed_by)) == f"goes on{mark}"
    scene.clock.advance(CLAIM_LEASE_S + 1)
    await scene.dispatcher.once()
    assert await scene.standing() == [("evt_1", "succeeded", 1)]


async def test_careful_is_one_run_at_a_time_and_no_other_is_claimed(database: Database, broker: Broker) -> None:
    at_once, most, claimed, gate = 0, 0, set[int](), asyncio.Event()

    async def counted(event: Event, ctx: Context) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        async with database.reading() as session:
            claimed.add(await session.scalar(select(func.count()).where(RUNS.c.claimed_by.is_not(None))) or 0)
        await gate.wait() if event.id == "evt_1" else await asyncio.sleep(0)
        at_once -= 1

    @handles("order.paid", name="test:one")
    async def one(event: Event, ctx: Context) -> None:
        await home(counted(event, ctx))

    @handles("order.paid", name="test:two", transactional=True)
    async def two(event: Event, ctx: Context) -> None:
        nonlocal most
        most = max(most, at_once + 1)

    loop = asyncio.get_running_loop()

    async def home(what: object) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(what, loop))  # type: ignore[arg-type]  # a coroutine

    shop = Workshop(database, broker, [one, two])
    await shop.publish(*[order_paid(number) for number in range(1, 11)])
    async with shop.working() as worker:
        worker.go_carefully(True)
        await eventually(lambda: bool(claimed))
        gate.set()
        await eventually(lambda: shop.all_succeeded(20), within_s=30)
    assert most == 1
    assert claimed == {1}


async def test_careful_no_handler_is_called_with_a_batch_even_one_that_is_taken_apart(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = list[Way]()
    whole = Ingest._store

    async def odd(*given: Any, **options: Any) -> Taken:
        _, arrived, _, way = given
        if arrived:
            ways.append(way)
        if ways == [way]:
            raise ValueError("the batch cannot be stored as one")
        return await whole(*given, **options)

    monkeypatch.setattr(Ingest, "_store", odd)
    shop = Workshop(database, broker, [ships])
    await shop.publish(*[order_paid(number) for number in range(3)])
    async with shop.working() as worker:
        worker.go_carefully(True)
        await eventually(lambda: shop.all_succeeded(3), within_s=30)
    assert (len(ways) > 1, set(ways)) == (True, {Way.SINGLY})


async def test_careful_what_is_not_worked_on_yet_stays_in_the_log(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is taken is tried one by one, long after care is over; what lies in the log is taken by hundreds then."""
    most, waits, home = 0, asyncio.Event(), asyncio.get_running_loop()

    async def rested(clock: Clock, seconds: float, stop: asyncio.Event) -> None:
        waits.set()
        await rest(clock, seconds / 10, stop)

    async def count() -> bool:
        nonlocal most
        most = max(most, len([status for status in await shop.statuses() if status == "retrying"]))
        return waits.is_set() or most > 3 * BATCH

    @handles("order.paid", name="test:counts")
    async def counts(event: Event, ctx: Context) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(eventually(count), home))

    next_due, has_found = queue.next_due, False

    async def slowly(session: AsyncSession, over: datetime) -> Mapping[str, datetime]:
        nonlocal has_found
        found = await next_due(session, over)
        if found and not has_found:  # as on a busy machine: all of the log could be taken meanwhile
            has_found = True
            await asyncio.sleep(LOOK_TAKES_S)
        return found

    monkeypatch.setattr(queue, "next_due", slowly)
    monkeypatch.setattr(dispatcher, "rest", rested)
    shop = Workshop(database, broker, [counts], config=WorkerConfig(topic=TOPIC, drain_s=5, batch=BATCH))
    await shop.publish(*[order_paid(number) for number in range(10 * BATCH)])
    async with shop.working() as worker:
        worker.go_carefully(True)
        await eventually(waits.is_set)
        await eventually(lambda: shop.all_succeeded(10 * BATCH), within_s=60)
    assert most <= 3 * BATCH
