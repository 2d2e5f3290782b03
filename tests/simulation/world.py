"""World: two `work` processes on one log and one ledger, what is said to them, and what befalls them. All of it follows
from a seed."""

from __future__ import annotations

import asyncio
import gc
import random as chance
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any
from unittest import mock

from sqlalchemy import text

from consumer.events import Event, Locators
from consumer.ledger import Database, sqlite_driver
from consumer.plugin import declared
from consumer.telemetry.metrics import Metrics
from consumer.work import build
from consumer.work.execution import loop_pool, network_in_transaction
from consumer.work.execution.contexts import Contexts
from consumer.work.observer import Observer
from consumer.work.registry import Registry
from consumer.work.worker import Worker, WorkerConfig
from handlers.access import handler as access
from handlers.fulfilment import handler as fulfilment
from tests.promises.lives import Life
from tests.simulation import ledger, shop
from tests.simulation.acts import Acts, play
from tests.simulation.log import Client, Log
from tests.simulation.loop import Process, SameLoop, SimulatedClock, SimulatedLoop, here
from tests.simulation.own_state import check
from tests.support.handling.projections import Projections
from tests.work.workshop import message

TOPIC, GROUP, APPLICATION = "payments.events", "work", "shop"
PLUGINS = {"fulfilment": fulfilment, "access": access, "shop": shop}
OPTIONS: dict[str, dict[str, Any]] = {
    "fulfilment": {"read_within_s": 1.0},
    "access": {"resubscribe": "5s", "settle": "1s", "provisional_after": "1s"},
}
WORKERS = 2
BEFALLS_AT_MOST = 6
TROUBLES = (0.0, 0.05, 0.2)
"""Of calls over a network, and of a handler's attempts; a statement fails a tenth as often."""
PEACE_S, SETTLED_S = 300.0, 20.0

UNFINISHED = {
    "runs": "SELECT count(*) FROM runs WHERE status <> 'succeeded' OR blocking OR claimed_by IS NOT NULL",
    "derived events": "SELECT count(*) FROM outbox WHERE published_at IS NULL AND not_before <= :now",
}


class World:
    """One play on a ledger of its own."""

    def __init__(self, seed: int, life: Life, database_url: str) -> None:
        self.random = Random(seed)
        self.clock = SimulatedClock(asyncio.get_running_loop(), life.now)
        self.story: list[str] = []
        self._said: set[str] = set()
        self._life = life
        self._url = database_url
        self._database = Database(database_url, durable=False)
        self._log = Log(self.clock, self.random)
        self._group = self._log.group(GROUP, [TOPIC])
        self._acts = Acts(self.random, self._tell)
        self._names = count(1)
        self._workers: list[_Role] = []
        play(self._acts)

    async def live(self) -> None:
        """What reaches us arrives while things befall the processes; then one reconcile, in peace. They end by
        themselves."""
        self._workers = [self._boot() for _ in range(WORKERS)]
        self._log.trouble = self._acts.trouble = self.random.choice(TROUBLES)
        befalling = asyncio.create_task(self._befall())
        for event in self._arriving():
            await asyncio.sleep(self.random.expovariate(4.0))
            self._say(event)
        await befalling
        self._log.trouble = self._acts.trouble = 0.0
        self._tell("peace")
        for event in self._life.reconcile(APPLICATION):
            self._say(event)
        await self._quiet()
        await asyncio.sleep(SETTLED_S)
        await self._quiet()
        for worker in self._workers:
            worker.stop.set()
            await asyncio.wait_for(worker.running, 60)
        self._group.close()

    def fails(self, share: float) -> bool:
        """Whether a statement fails here."""
        return here() is not None and self.random.random() < self._log.trouble / 10 * share

    async def prove(self) -> None:
        """What stands in the ledger is the service's own state, and what handlers did follows from it, each once."""
        projections = Projections(
            self._database, "handlers.fulfilment.handler", "handlers.access.handler",
            now=self.clock.now(), application=APPLICATION,
        )  # fmt: skip
        await check(projections, self._life, APPLICATION)
        async with self._database.reading() as session:
            events = (await session.execute(text("SELECT id, seq, type, key FROM events"))).all()
        assert self._said <= {event.id for event in events}, "what came by the log is in the ledger"
        self._acts.require_no_act_was_done_twice()
        self._acts.require_order("note", {event.id: event.seq for event in events})
        for handler, types in (("ship", ("fulfilment.requested",)), ("tell", ("parcel.counted",)),
                               ("door", ("access.granted", "access.revoked"))):  # fmt: skip
            wanted = {event.id for event in events if event.type in types}
            assert {act.event_id for act in self._acts.of(handler)} == wanted, f"what {handler} did"
        counted = {event.key for event in events if event.type == "order.paid"}
        assert {event.key for event in events if event.type == "parcel.counted"} == counted, "what was emitted"
        await self._database.stop()

    def _arriving(self) -> list[Event]:
        """Most of the webhooks, some of them twice, some reads of the way, some answers that there is no such thing, in
        any order."""
        kept = [one for one in self._life.webhooks(APPLICATION) if self.random.random() < 0.8]
        doubled = [one for one in kept if self.random.random() < 0.3]
        reads, denials = self._life.readings(APPLICATION), self._life.denials(APPLICATION)
        read = self.random.sample(reads, self.random.randint(0, min(6, len(reads))))
        denied = self.random.sample(denials, self.random.randint(0, min(2, len(denials))))
        arriving = [*kept, *doubled, *read, *denied]
        self.random.shuffle(arriving)
        return arriving

    # --- what happens ------------------------------------------------------------------------------------------

    def _say(self, event: Event) -> None:
        self._tell(f"said {event.type} {event.key} {event.id}")
        self._said.add(event.id)
        self._log.append(TOPIC, [message(event)])

    def _boot(self) -> _Role:
        name = f"work-{next(self._names)}"
        self._tell(f"{name} begins")
        return _Role(name, self._url, self._log, self.clock)

    async def _befall(self) -> None:
        for _ in range(self.random.randint(0, BEFALLS_AT_MOST)):
            await asyncio.sleep(self.random.uniform(0, 3))
            place = self.random.randrange(WORKERS)
            process = self._workers[place].process
            if self.random.random() < 0.7:
                self._tell(f"{process.name} is killed")
                process.kill()
                await asyncio.sleep(self.random.uniform(0, 5))
                self._workers[place] = self._boot()
            else:
                stands_s = self.random.choice((0.5, 5.0, 30.0))
                self._tell(f"{process.name} stands still for {stands_s} s")
                process.stop()
                await asyncio.sleep(stands_s)
                process.go_on()

    async def _quiet(self) -> None:
        until_s = self.clock.monotonic() + PEACE_S
        while left := await self._unfinished():
            assert self.clock.monotonic() < until_s, f"after {PEACE_S} s in peace still: {left}"
            assert not any(worker.running.done() for worker in self._workers), "one ended by itself"
            await asyncio.sleep(1.0)

    async def _unfinished(self) -> dict[str, int]:
        left = {} if self._group.is_done else {"records": 1}
        async with self._database.reading() as session:
            for what, statement in UNFINISHED.items():
                given = {"now": self.clock.now()} if ":now" in statement else {}
                if number := await session.scalar(text(statement), given):
                    left[what] = number
        return left

    def _tell(self, what: str) -> None:
        self.story.append(f"{self.clock.monotonic():9.3f} {what}")


class _Role:
    """A `work` process."""

    def __init__(self, name: str, database_url: str, log: Log, clock: SimulatedClock) -> None:
        self.process, self.stop = Process(name), asyncio.Event()
        self.running = self.process.start(self._run(database_url, log, clock))

    async def _run(self, database_url: str, log: Log, clock: SimulatedClock) -> None:
        database = Database(database_url, durable=False)
        await _worker(self.process.name, database, Client(log, self.process), clock).run(self.stop)
        await database.stop()


def _worker(name: str, database: Database, broker: Client, clock: SimulatedClock) -> Worker:
    """As a `work` process builds it, without a watch on the loop's real time."""
    found = [(plugin, declared(one)) for plugin, module in PLUGINS.items() for one in vars(module).values()]
    handlers = [replace(handler, plugin=plugin) for plugin, handler in found if handler is not None]
    with mock.patch.object(build, "worker_id", return_value=name):
        return build.build_worker(
            database=database,
            broker=broker,
            registry=Registry(handlers),
            contexts=Contexts(clock, options=OPTIONS, ledger=database),
            locators={APPLICATION: Locators()},
            clock=clock,
            observer=Observer(Metrics()),
            config=WorkerConfig(topic=TOPIC, group=GROUP, batch=20, drain_s=5, cutoff_s=0),
        )


def played(seed: int, life: Life, database_url: str) -> list[str]:
    """What happened, line by line, each with its second. Raises AssertionError when it did not end as it must; the
    story so far is its note."""
    random = Random(seed)
    worlds: list[World] = []

    async def pause() -> None:
        await asyncio.sleep(0 if here() is None else random.uniform(0, 0.01))

    async def go() -> None:
        worlds.append(world := World(seed, life, database_url))
        await world.live()
        await world.prove()

    before = chance.getstate()
    chance.seed(seed)  # by it the waits before a next attempt are spread
    gc.collect()
    gc.disable()  # what it ends, it would end at some other time in the next play
    made = ledger.connecting(pause, lambda share: worlds[0].fails(share), lambda: worlds[0].clock.now())
    with _simulated(made) as loop:
        try:
            loop.run_until_complete(go())
        except BaseException as error:
            error.add_note("\n".join(worlds[0].story))
            raise
        finally:
            gc.enable()
            chance.setstate(before)
    return worlds[0].story


@contextmanager
def _simulated(connection: object) -> Iterator[SimulatedLoop]:
    with (
        mock.patch.object(sqlite_driver, "connection", connection),
        mock.patch.object(loop_pool, "LoopThread", SameLoop),
        mock.patch.object(network_in_transaction, "told", nullcontext),  # the dead would listen for ever
        closing(SimulatedLoop()) as loop,
    ):
        yield loop
