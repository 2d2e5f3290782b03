"""World: two `work` processes on one log and one ledger, a `sync` beside them where what is said is to be proved first,
and what befalls them. All of it follows from a seed."""

from __future__ import annotations

import asyncio
import gc
import random as chance
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from itertools import count
from random import Random
from unittest import mock

from sqlalchemy import bindparam, text

from consumer.broker.base import Message
from consumer.columns import UtcDateTime
from consumer.events import Delivery, Event, Locators
from consumer.ledger import Database, sqlite_driver
from consumer.sandbox.engine.events import public_id
from consumer.sandbox.engine.records import Event as SentEvent
from consumer.sync.reconcile.state import load_state
from consumer.wire import OWN_PREFIXES, pack_delivery
from consumer.work.execution import loop_pool
from consumer.work.execution.network import network_in_transaction
from tests.promises.lives import Life
from tests.simulation import ledger, roles
from tests.simulation.acts import Acts, play
from tests.simulation.log import Client, Log
from tests.simulation.loop import Process, SameLoop, SimulatedClock, SimulatedLoop, here
from tests.simulation.own_state import arriving, check
from tests.simulation.roles import (
    APPLICATION,
    DELIVERIES,
    EVENTS,
    Role,
    Work,
)
from tests.simulation.service import Service
from tests.support.handling.projections import Projections
from tests.work.workshop import message

WORKERS = 2
BEFALLS_AT_MOST = 6
TROUBLES = (0.0, 0.05, 0.2)
"""Of calls over a network, and of a handler's attempts; a statement fails a tenth as often."""
HEARD_SHARE, FORGED_SHARE = 0.8, 0.1
AWAY_S = (0.5, 3.0, 12.0)
WEBHOOKS, PACES = ((0, 0, 1, 1, 2), (0,)), (2.0, 20.0)
"""How often an event's webhook comes; how many events happen in a second."""
PEACE_S, SETTLED_S, SEEN_S = 300.0, 20.0, 45.0
"""`SEEN_S`: for a round of everything that `sync` does, and the rest of the one before (see `roles.SYNC`)."""

UNFINISHED = {
    "runs": "SELECT count(*) FROM runs WHERE status <> 'succeeded' OR blocking OR claimed_by IS NOT NULL",
    "derived events": "SELECT count(*) FROM outbox WHERE published_at IS NULL AND not_before <= :now",
}


class World:
    """One play on a ledger of its own, whose facts are said to the log as if by `serve` and `sync`."""

    def __init__(self, seed: int, life: Life, database_url: str) -> None:
        self.random = Random(seed)
        self.clock = SimulatedClock(asyncio.get_running_loop(), life.now)
        self.story: list[str] = []
        self._said: set[str] = set()
        self._life = life
        self._url = database_url
        self._database = Database(database_url, durable=False)
        self._log = Log(self.clock, self.random)
        self._groups = [self._log.group(roles.WORK_GROUP, [EVENTS])]
        self._acts = Acts(self.random, self._tell)
        self._numbers = count(1)
        self._roles: list[Role] = []
        self._kinds = ["work"] * WORKERS
        self._unfinished = dict(UNFINISHED)
        play(self._acts)

    async def live(self) -> None:
        """What reaches us arrives while things befall the processes; then there is peace. They end by themselves."""
        self._roles = [self._boot(kind) for kind in self._kinds]
        await self._begin()
        self._trouble(self.random.choice(TROUBLES))
        befalling = asyncio.create_task(self._befall())
        await self._happen()
        await befalling
        self._trouble(0.0)
        self._tell("peace")
        await self._settle()
        for role in self._roles:
            role.stop.set()
            await asyncio.wait_for(role.running, 60)
        for group in self._groups:
            group.close()

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
        self._require_known({event.id for event in events})
        self._acts.require_no_act_was_done_twice()
        self._acts.require_order("note", {event.id: event.seq for event in events})
        for handler, types in (("ship", ("fulfilment.requested",)), ("tell", ("parcel.counted",)),
                               ("door", ("access.granted", "access.revoked"))):  # fmt: skip
            wanted = {event.id for event in events if event.type in types}
            assert {act.event_id for act in self._acts.of(handler)} == wanted, f"what {handler} did"
        counted = {event.key for event in events if event.type == "order.paid"}
        assert {event.key for event in events if event.type == "parcel.counted"} == counted, "what was emitted"
        await self._database.stop()

    # --- what differs between plays ----------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Nothing has to be there first."""

    async def _happen(self) -> None:
        for event in arriving(self.random, self._life, APPLICATION, heard=HEARD_SHARE):
            await asyncio.sleep(self.random.expovariate(4.0))
            self._say(event)

    async def _settle(self) -> None:
        """One reconcile."""
        for event in self._life.reconcile(APPLICATION):
            self._say(event)
        await self._quiet()
        await asyncio.sleep(SETTLED_S)
        await self._quiet()

    def _require_known(self, recorded: set[str]) -> None:
        assert self._said <= recorded, "what came by the log is in the ledger"

    def _trouble(self, share: float) -> None:
        self._log.trouble = self._acts.trouble = share

    def _say(self, event: Event) -> None:
        self._tell(f"said {event.type} {event.key} {event.id}")
        self._said.add(event.id)
        self._log.append(EVENTS, [message(event)])

    # --- what happens ------------------------------------------------------------------------------------------

    def _boot(self, kind: str) -> Role:
        process = Process(f"{kind}-{next(self._numbers)}")
        self._tell(f"{process.name} begins")
        return Role(process, self._work(process), self._url)

    def _work(self, process: Process) -> Work:
        return roles.worker(process.name, Client(self._log, process), self.clock)

    async def _befall(self) -> None:
        for _ in range(self.random.randint(0, BEFALLS_AT_MOST)):
            await asyncio.sleep(self.random.uniform(0, 3))
            place = self.random.randrange(len(self._roles))
            await self.random.choices((self._kill, self._stand_still, self._log_away), (6, 3, 3))[0](place)

    async def _kill(self, place: int) -> None:
        process = self._roles[place].process
        self._tell(f"{process.name} is killed")
        process.kill()
        await asyncio.sleep(self.random.uniform(0, 5))
        self._roles[place] = self._boot(self._kinds[place])

    async def _stand_still(self, place: int) -> None:
        process, stands_s = self._roles[place].process, self.random.choice((0.5, 5.0, 30.0))
        self._tell(f"{process.name} stands still for {stands_s} s")
        process.stop()
        await asyncio.sleep(stands_s)
        process.go_on()

    async def _log_away(self, _: int) -> None:
        away_s = self.random.choice(AWAY_S)
        self._tell(f"the log is away for {away_s} s")
        self._log.is_away = True
        await asyncio.sleep(away_s)
        self._log.is_away = False

    async def _quiet(self) -> None:
        until_s = self.clock.monotonic() + PEACE_S
        while left := await self._left():
            assert self.clock.monotonic() < until_s, f"after {PEACE_S} s in peace still: {left}"
            assert not any(role.running.done() for role in self._roles), "one ended by itself"
            await asyncio.sleep(1.0)

    async def _left(self) -> dict[str, int]:
        left = {} if all(group.is_done for group in self._groups) else {"records": 1}
        async with self._database.reading() as session:
            for what, statement in self._unfinished.items():
                asked = text(statement)
                if ":now" in statement:
                    asked = asked.bindparams(bindparam("now", self.clock.now(), UtcDateTime()))
                if number := await session.scalar(asked):
                    left[what] = number
        return left

    def _tell(self, what: str) -> None:
        self.story.append(f"{self.clock.monotonic():9.3f} {what}")


class ReadWorld(World):
    """One play whose facts `sync` reads: webhooks are only hints of them, and few come."""

    def __init__(self, seed: int, life: Life, database_url: str) -> None:
        super().__init__(seed, life, database_url)
        self._service = Service(life, APPLICATION, self.random)
        self._groups.append(self._log.group(roles.CONFIRM_GROUP, [DELIVERIES]))
        self._kinds.append("sync")
        self._unfinished["hints"] = "SELECT count(*) FROM hints"

    def _work(self, process: Process) -> Work:
        if process.name.startswith("sync"):
            return roles.reader(process.name, Client(self._log, process), self.clock, self._service)
        return super()._work(process)

    def _trouble(self, share: float) -> None:
        super()._trouble(share)
        self._service.trouble = share

    async def _begin(self) -> None:
        """What was paid before the first reconcile is acted on by nobody: it comes first."""
        async with asyncio.timeout(PEACE_S):
            while not await self._is_baselined():
                await self.clock.sleep(1.0)

    async def _is_baselined(self) -> bool:
        async with self._database.reading() as session:
            return (await load_state(session, APPLICATION)).payments_baselined

    async def _happen(self) -> None:
        """Reads come to show one event after the other; its webhook comes once, twice or never, soon or late. In some
        plays none comes, and what happens fills many pages at once: then the walk alone finds it."""
        under_way: list[SentEvent] = []
        webhooks, pace = self.random.choice(WEBHOOKS), self.random.choice(PACES)
        for event in self._service.events:
            await asyncio.sleep(self.random.expovariate(pace))
            self._tell(f"happens {event.type} {public_id(event)}")
            self._service.show(event)
            under_way += [event] * self.random.choice(webhooks)
            self.random.shuffle(under_way)
            while under_way and self.random.random() < 0.5:
                self._deliver(self._service.webhook(under_way.pop(), next(self._numbers), self.clock.now()))
            if self.random.random() < FORGED_SHARE:
                self._deliver(self._service.forged(next(self._numbers), self.clock.now()))
        for event in under_way:
            await asyncio.sleep(self.random.expovariate(2.0))
            self._deliver(self._service.webhook(event, next(self._numbers), self.clock.now()))

    async def _settle(self) -> None:
        """Until `sync` has seen everything."""
        self._service.show()
        await asyncio.sleep(SEEN_S)
        await self._quiet()

    def _deliver(self, delivery: Delivery) -> None:
        self._tell(f"delivered {delivery.event_id}")
        packed = pack_delivery(delivery, Locators())
        self._log.append(DELIVERIES, [Message(key=packed.key, value=packed.value, headers=packed.headers)])

    def _require_known(self, recorded: set[str]) -> None:
        happened = {public_id(event) for event in self._service.events}
        theirs = {one for one in recorded if not one.startswith(OWN_PREFIXES)}
        assert theirs == happened, "what happened at the service is in the ledger, and nothing else"


def played(seed: int, life: Life, database_url: str, kind: type[World] = World) -> list[str]:
    """What happened in a world of that kind, line by line, each with its second. Raises AssertionError when it did not
    end as it must; the story so far is its note."""
    random = Random(seed)
    worlds: list[World] = []

    async def pause() -> None:
        await asyncio.sleep(0 if here() is None else random.uniform(0, 0.01))

    async def go() -> None:
        worlds.append(world := kind(seed, life, database_url))
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
