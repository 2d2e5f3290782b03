"""Housekeeping: between the batches a worker tells the ledger that it lives, hears what operators say, and lets go what
waits for nothing."""

from __future__ import annotations

import asyncio

from consumer.clock import Clock, is_set_within, rest, until_tick
from consumer.errors import LedgerError
from consumer.ledger import Database
from consumer.ledger.handling import handlers, lanes, runs
from consumer.ledger.handling.handlers import ALL, Paused
from consumer.telemetry.logs import Condition
from consumer.work.dispatch.breakers import Breakers
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.execution.executor import Executor
from consumer.work.ingest.ingest import Ingest
from consumer.work.ingest.rolling_deploy import LOOK_EVERY_S, brings_new
from consumer.work.observer import Observer
from consumer.work.pausing.pauser import Pauser
from consumer.work.registry import Registry
from consumer.work.rounds.backlog import Backlog
from consumer.work.rounds.position import Position
from consumer.work.rounds.set_back import ClockSetBack
from consumer.work.rounds.waiting_handlers import WaitingHandlers

HOUSEKEEPING_S = 1.0
RENEW_EVERY = 4
RETRY_S = 5.0


class Housekeeping:
    """What one worker does about once a second, and every RENEW_EVERY times more of it."""

    def __init__(
        self,
        *,
        database: Database,
        registry: Registry,
        ingest: Ingest,
        dispatcher: Dispatcher,
        executor: Executor,
        breakers: Breakers,
        pauser: Pauser,
        position: Position,
        backlog: Backlog,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._database = database
        self._registry = registry
        self._ingest = ingest
        self._dispatcher = dispatcher
        self._executor = executor
        self._breakers = breakers
        self._pauser = pauser
        self._position = position
        self._backlog = backlog
        self._clock = clock
        self._observer = observer
        self._waiting = WaitingHandlers(database, breakers)
        self._clock_set_back = ClockSetBack(database, clock)
        self._looked_up_to: lanes.Place | None = None
        self._paused = Paused()
        self._untidy = Condition("housekeeping_failed")
        pauser.on_pause = self._pause_here

    async def register(self, stop: asyncio.Event) -> None:
        """Before the first batch: say which handlers this worker has, and hear which are paused. Raises LedgerError
        that no waiting mends."""
        away = Condition("ledger_not_ready")
        while not stop.is_set():
            try:
                async with self._database.transaction() as session:
                    now = self._clock.now()
                    is_news = brings_new(self._registry, await handlers.everyone(session), now)
                    await handlers.register(session, self._registry.handlers, now)
                    paused = await handlers.paused(session)
                self._honour(paused.of)  # before the first batch: it may hold what a handler was paused for
                if is_news:
                    await rest(self._clock, LOOK_EVERY_S, stop)  # until the others have looked
                away.over()
                return
            except LedgerError as error:
                if not error.retryable:
                    raise
                away.lasts(error)
                await rest(self._clock, RETRY_S, stop)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep house until `stop` is set, whatever fails."""
        round_number = 0
        while not stop.is_set():
            try:
                await self._tidy(renew=(renews := round_number % RENEW_EVERY == 0))
                if renews:  # else little was written, if anything
                    self._untidy.over()
            except LedgerError as error:
                self._untidy.lasts(error)
            round_number += 1
            await is_set_within(stop, until_tick(self._clock, HOUSEKEEPING_S))

    async def _tidy(self, *, renew: bool) -> None:
        if renew:
            await self._renew()
        if await self._clock_set_back.heed():
            self._dispatcher.wake()
        self._pauser.abandoned(self._executor.abandoned_by())
        await self._pauser.store()
        await self._waiting.tell(anew=renew)
        async with self._database.reading() as session:
            paused = await handlers.paused(session)
            parked = await lanes.stranded(session, self._first_to_look_at(paused), held=paused.of)
            if renew:
                await self._position.look(session)
        self._honour(paused.of, self._pauser.unstored)  # read last: one may have paused itself just now
        self._observer.paused(self._paused.names, [handler.name for handler in self._registry.handlers])
        self._looked_up_to = parked.after
        if parked.stranded:
            await self._let_go(parked)

    async def _renew(self) -> None:
        """Say that this worker and its handlers live."""
        async with self._database.transaction() as session:
            await handlers.register(session, self._registry.handlers, self._clock.now())
            await handlers.waiting_is_over(session, answered := self._breakers.answered())
        self._breakers.noted(answered)
        await self._backlog.measure_ledger()

    async def _let_go(self, parked: lanes.Page) -> None:
        """What waits behind nothing goes on."""
        async with self._database.transaction() as session:
            released = await runs.release(session, parked, self._clock.now())
        if released:
            self._dispatcher.wake()

    def _first_to_look_at(self, paused: Paused) -> lanes.Place | None:
        """Where something was parked because its handler was paused for its application, and is no longer."""
        gone = self._paused.of - paused.of - self._pauser.unstored
        resumed = sorted((name, application) for name, application in gone if application != ALL)
        if not resumed:
            return self._looked_up_to
        name, application = resumed[0]
        return (name, application, "")

    def _honour(self, paused: frozenset[tuple[str, str]], unstored: frozenset[tuple[str, str]] = frozenset()) -> None:
        """`unstored`: what the ledger does not have yet. Until then no claim knows for which application it is paused:
        so long none of any is begun."""
        now = Paused(paused | unstored)
        for name, application in self._paused.of - now.of:
            self._pauser.resumed(name, application)
            self._breakers.forget(name, application)
        self._paused = now
        here = Paused(paused | {(name, ALL) for name, _ in unstored})
        if self._dispatcher.paused.of - here.of:
            self._dispatcher.wake()
        self._ingest.paused = self._dispatcher.paused = here

    def _pause_here(self, name: str, application: str) -> None:
        """At once; the ledger, and so the other workers, hear of it with the next housekeeping."""
        self._paused = Paused(self._paused.of | {(name, application)})
        self._ingest.paused = self._dispatcher.paused = Paused(self._dispatcher.paused.of | {(name, ALL)})
