"""A run whose process ends with it (a crash in C code, no memory, `os._exit`) is found out by working on one at a time,
loses an attempt each time, and is dead after a few; the others go on, and a handler that does it again is paused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sqlalchemy import func, select

from consumer.broker import Broker
from consumer.clock import DrivenClock
from consumer.errors import HandlerEndsProcess
from consumer.ledger import Database
from consumer.ledger.handling import dead, events, runs
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.tables import AttemptRow, RunRow, RunStatus
from consumer.plugin import Context, Event, Handler, declared, handles
from consumer.work.dispatch.breakers import Breakers
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.dispatch.left_behind import ENDED_MAX, LATELY
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor
from consumer.work.registry import Registry
from tests.support.handling.projections import START
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

RUNS = RunRow.__table__
CALLED: list[str] = []


@handles("order.paid", name="test:ships", attempts=9)
async def ships(event: Event, ctx: Context) -> None:
    """What ends its process never comes so far here: the one that dies is played by a claim that nobody ends."""
    CALLED.append(event.id)


class Scene:
    """A ledger with workers that die, and one that does not."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = DrivenClock(START)
        self.deadly: list[str] = []
        self.handler = _declared(ships)
        self._executor = Executor()
        self.dispatcher = Dispatcher(
            database=database,
            registry=Registry([self.handler]),
            contexts=Contexts(clock=self.clock),
            executor=self._executor,
            breakers=Breakers(),
            clock=self.clock,
            worker="lives",
            observe=lambda _: None,
            on_emitted=lambda: None,
            on_deadly=self.deadly.append,
        )
        CALLED.clear()

    async def close(self) -> None:
        await self._executor.pool.close()

    async def come(self, *numbers: int) -> None:
        """Runs for these, that nobody has begun."""
        found = [order_paid(number) for number in numbers]
        now = self.clock.now()
        async with self.database.transaction() as session:
            new = await events.record(session, found, now)
            await runs.add(session, [
                runs.Run(application=one.application, event_id=one.id, handler=self.handler.name, key=one.key,
                         seq=new[one.application, one.id], status=RunStatus.RETRYING, blocking=True, next_at=now)
                for one in found
            ], now)  # fmt: skip

    async def die(self, times: int = 1) -> None:
        """Workers take what is due, each a run, and are gone."""
        for number in range(times):
            async with self.database.transaction() as session:
                await runs.claim(session, handler=self.handler.name, worker=f"dead-{number}", limit=1,
                                 now=self.clock.now(), lease_s=CLAIM_LEASE_S)  # fmt: skip
            self.clock.advance(CLAIM_LEASE_S + 1)

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


async def test_a_death_costs_the_run_that_was_at_work_an_attempt(database: Database) -> None:
    scene = Scene(database)
    scene.dispatcher.is_careful = True
    try:
        await scene.come(1)
        await scene.die()
        await scene.dispatcher.once()
        assert CALLED == []
        assert await scene.standing() == [("evt_1", "retrying", 1)]
        assert await _codes(database) == [HandlerEndsProcess.code]
        scene.clock.advance(3600)
        await scene.dispatcher.once()
        assert await scene.standing() == [("evt_1", "succeeded", 2)]
    finally:
        await scene.close()


async def test_after_a_few_it_is_dead_and_the_others_go_on(database: Database) -> None:
    scene = Scene(database)
    scene.dispatcher.is_careful = True
    try:
        await scene.come(1)
        for _ in range(ENDED_MAX):
            await scene.die()
            await scene.dispatcher.once()
            scene.clock.advance(3600)
        await scene.come(2)
        await scene.dispatcher.once()
        assert await scene.standing() == [("evt_1", "dead", ENDED_MAX), ("evt_2", "succeeded", 1)]
        assert CALLED == ["evt_2"]
        assert scene.deadly == []
        async with database.reading() as session:
            [found] = await dead.search(session, dead.DeadFilter())
        assert (found.code, found.handler) == (HandlerEndsProcess.code, "test:ships")
        assert "dead-0" in (found.reason or "")
    finally:
        await scene.close()


async def test_a_second_event_pauses_the_handler(database: Database) -> None:
    scene = Scene(database)
    scene.dispatcher.is_careful = True
    try:
        for number in (1, 2, 3):
            await scene.come(number)
            for _ in range(ENDED_MAX):
                await scene.die()
                await scene.dispatcher.once()
                scene.clock.advance(120)
            if number == 2:
                assert scene.deadly == ["test:ships"]
                scene.clock.advance(LATELY.total_seconds())
        assert scene.deadly == ["test:ships"], "what was long ago counts no more"
    finally:
        await scene.close()


async def test_who_is_not_careful_begins_it_again(database: Database) -> None:
    """A kill now and then is nobody's fault."""
    scene = Scene(database)
    try:
        await scene.come(1)
        await scene.die(5)
        await scene.dispatcher.once()
        assert await scene.standing() == [("evt_1", "succeeded", 1)]
    finally:
        await scene.close()


async def test_a_claim_that_was_given_back_was_no_death(database: Database) -> None:
    scene = Scene(database)
    scene.dispatcher.is_careful = True
    try:
        await scene.come(1)
        async with database.transaction() as session:
            [taken] = await runs.claim(session, handler="test:ships", worker="stops", limit=1, now=scene.clock.now(),
                                       lease_s=CLAIM_LEASE_S)  # fmt: skip
            await runs.give_back(session, [taken.id], worker="stops")
        await scene.dispatcher.once()
        assert await scene.standing() == [("evt_1", "succeeded", 1)]
    finally:
        await scene.close()


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
