"""Live: a worker's ingest and dispatcher on a real ledger, with time that is driven and handlers that fail when told.

What `Projections` leaves out is here: runs are recorded, a run that fails waits and is made up for later, by a
dispatcher whose clock may be another one's. So the order in which events were handled is not the order in which they
came.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from importlib import import_module
from itertools import count
from typing import Any

from sqlalchemy import select

from consumer.broker.base import Message, Partition, Record
from consumer.clock import DrivenClock
from consumer.console.checkouts import Body, register_checkout
from consumer.events import Event, Locators
from consumer.ledger import Database
from consumer.ledger.handling import outbox
from consumer.ledger.tables import OutboxRow, RunRow, RunStatus
from consumer.plugin import Context, Handler, RetryPolicy
from consumer.wire import pack_event
from consumer.work.dispatch.breakers import Breakers
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor
from consumer.work.execution.handler_call import was_cut
from consumer.work.ingest.ingest import Ingest, Taken
from consumer.work.outcome import Failed, Outcome, has_timed_out
from consumer.work.registry import Registry, handlers_of
from tests.support.handling.projections import START, derived_event

TICK_S = 0.001
ROUNDS_MAX = 200
OUTBOX = OutboxRow.__table__
RUNS = RunRow.__table__


class _Skewed(DrivenClock):
    """Another machine's clock: the same time, and a constant error."""

    def __init__(self, clock: DrivenClock, by: timedelta) -> None:
        super().__init__()
        self._clock = clock
        self._by = by

    def now(self) -> datetime:
        return self._clock.now() + self._by

    def monotonic(self) -> float:
        return self._clock.monotonic()


class _Noting(Executor):
    """Notes how batches failed, but for those that took too long: what follows, one by one, hides it."""

    def __init__(self) -> None:
        super().__init__()
        self.disturbed: list[Failed] = []

    async def together(
        self, handler: Handler, batch: Sequence[tuple[Event, Context]], *, limit_s: float | None = None
    ) -> Outcome:
        outcome = await super().together(handler, batch, limit_s=limit_s)
        if isinstance(outcome, Failed) and not has_timed_out(outcome) and not was_cut(outcome):
            self.disturbed.append(outcome)
        return outcome


class Live:
    """One application's workers. `stumbles`: (event id, handler) to how many attempts fail. `skew`: how far the clock
    of the worker that makes up for them is off. `attempts`: how many each handler has, if not as declared. `more`:
    handlers of the test's own. `generations`: how far what events lead to is taken with them."""

    def __init__(
        self,
        database: Database,
        plugins: Mapping[str, Mapping[str, Any]],
        *,
        application: str,
        stumbles: Mapping[tuple[str, str], int] | None = None,
        skew: timedelta = timedelta(0),
        attempts: int | None = None,
        more: Sequence[Handler] = (),
        generations: int = 0,
    ) -> None:
        self.database = database
        self.application = application
        self.options = plugins
        self.clock = DrivenClock(START)
        self.plain = [
            replace(handler, plugin=plugin)
            for plugin in plugins
            for handler in handlers_of(import_module(f"handlers.{plugin}.handler"))
        ]
        fails = {} if stumbles is None else stumbles
        self._executor = _Noting()
        given = [one if attempts is None else replace(one, retry=RetryPolicy(attempts=attempts)) for one in self.plain]
        self.registry = Registry([*(_stumbling(one, fails) for one in given), *more])
        self._offsets = count()
        self._ingest = Ingest(
            database=database,
            registry=self.registry,
            locators={application: Locators()},
            contexts=Contexts(self.clock, plugins),
            executor=self._executor,
            clock=self.clock,
            worker="ingest",
            generations=generations,
        )
        self._elsewhere = _Skewed(self.clock, skew)
        self._dispatcher = Dispatcher(
            database=database,
            registry=self.registry,
            contexts=Contexts(self._elsewhere, plugins),
            executor=self._executor,
            breakers=Breakers(),
            clock=self._elsewhere,
            worker="dispatcher",
            observe=lambda _: None,
            on_emitted=lambda: None,
        )

    async def close(self) -> None:
        await self._executor.pool.close()

    @property
    def disturbed(self) -> Sequence[Failed]:
        """How batches failed that were taken together."""
        return self._executor.disturbed

    async def arrive(self, *events: Event, plan: str | None = None) -> Taken:
        """These come now, in one batch."""
        self.clock.advance(TICK_S)
        return await self._ingest.take([self._record(event, plan) for event in events])

    async def take(self, *messages: Message) -> None:
        """These records come now, in one batch."""
        self.clock.advance(TICK_S)
        await self._ingest.take(
            [
                Record(
                    partition=Partition("events", 0),
                    offset=next(self._offsets),
                    key=one.key,
                    value=one.value,
                    headers=one.headers,
                    published_at=self.clock.now(),
                )
                for one in messages
            ]
        )

    def _record(self, event: Event, plan: str | None) -> Record:
        packed = pack_event(event, plan=plan)
        return Record(
            partition=Partition("events", 0),
            offset=next(self._offsets),
            key=packed.key,
            value=packed.value,
            headers=packed.headers,
            published_at=self.clock.now(),
        )

    async def register(self, session_id: str, **body: Any) -> None:
        """The merchant registers a checkout, as by the query API."""
        self.clock.advance(TICK_S)
        async with self.database.transaction() as session:
            await register_checkout(session, self.application, session_id, Body(**body), self.clock.now())

    async def make_up(self) -> int:
        """Runs that wait and are due are tried again; says how many were."""
        self.clock.advance(TICK_S)
        return await self._dispatcher.once()

    async def renew_claims(self) -> None:
        """As a worker does every few seconds. Raises LedgerError."""
        await self._dispatcher.renew_claims()

    async def relay(self) -> int:
        """What is due goes to the log and comes back, in one batch; says how much it was. What goes at once is due
        whatever the clock of who emitted it said."""
        now = self.clock.now()
        mine = (OUTBOX.c.application == self.application) & OUTBOX.c.published_at.is_(None)
        is_due = (OUTBOX.c.not_before <= now) | (OUTBOX.c.not_before <= OUTBOX.c.created_at)
        async with self.database.transaction() as session:
            due = select(OutboxRow).where(mine, is_due).order_by(OUTBOX.c.seq).limit(200)
            rows = (await session.execute(due)).scalars().all()
            await outbox.mark_published(session, rows, now)
        if rows:
            self.clock.advance(TICK_S)
            await self._ingest.take([self._record(derived_event(row, now), row.plan) for row in rows])
        return len(rows)

    async def pass_time(self, seconds: float, *, steps: int = 10) -> None:
        """Let time pass; timers go off and runs are made up for on the way."""
        for _ in range(steps):
            self.clock.advance(seconds / steps)
            for _ in range(ROUNDS_MAX):
                if not await self.relay() + await self.make_up():
                    break
            else:
                raise AssertionError("the work does not come to an end")

    async def unfinished(self) -> list[tuple[str, str, str]]:
        """Runs that still wait: (event id, handler, status)."""
        waiting = RUNS.c.status.in_([RunStatus.RETRYING.value, RunStatus.PARKED.value])
        statement = select(RUNS.c.event_id, RUNS.c.handler, RUNS.c.status).where(
            RUNS.c.application == self.application, waiting
        )
        async with self.database.reading() as session:
            return [(one, handler, status) for one, handler, status in await session.execute(statement)]


def _stumbling(handler: Handler, fails: Mapping[tuple[str, str], int]) -> Handler:
    def look(event: Event, ctx: Context) -> None:
        if ctx.attempt <= fails.get((event.id, handler.name), 0):
            raise RuntimeError("the test made this attempt fail, after its writes")

    @functools.wraps(handler.function)
    async def attempt(event: Event, ctx: Context) -> None:
        await handler.function(event, ctx)
        look(event, ctx)

    async def attempts(batch: Sequence[tuple[Event, Context]]) -> None:
        assert handler.together is not None
        await handler.together(batch)
        for event, ctx in batch:
            look(event, ctx)

    return replace(handler, function=attempt, together=handler.together and attempts)
