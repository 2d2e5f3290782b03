"""Replaying: what a command that replays is built from: the handlers as the workers have them, tried in a transaction
that is rolled back, and the log that copies go to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.app import log_parts
from consumer.app.options import require_options
from consumer.clock import Clock
from consumer.ledger import Database
from consumer.ledger.engine.database_time import shared_clock
from consumer.ledger.processes import worker_id
from consumer.ledger.tables import RunStatus
from consumer.plugin import Event, Handler
from consumer.replay.apply import Apply
from consumer.replay.plan import Planner
from consumer.replay.play import Tried
from consumer.replay.prediction import Predictor
from consumer.settings import Settings
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor
from consumer.work.execution.savepoint import in_savepoint
from consumer.work.outcome import Failed
from consumer.work.registry import Registry
from consumer.work.transition import transition_after


class Trier:
    """Calls a transactional handler as a worker would; the caller rolls back what it wrote."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self._executor = Executor()

    async def __call__(
        self, session: AsyncSession, handler: Handler, events: Sequence[Event], plan: str, *, isolated: bool
    ) -> Sequence[Tried]:
        """A first attempt under the plan for each of the events, many of them together; `isolated`: one, in a savepoint
        of its own."""
        now: datetime = self._contexts.clock.now()
        batch = [
            (event, self._contexts.make(handler, event, attempt=1, plan=plan, session=session)) for event in events
        ]
        if isolated:
            [one] = batch
            outcome = await in_savepoint(session, self._executor, handler, *one)
        else:
            await session.flush()
            session.expunge_all()  # as for a worker, a call finds none of another one's objects
            if len(batch) == 1:
                outcome = await self._executor.transactional(handler, *batch[0])
            else:
                outcome = await self._executor.together(handler, batch)
        result = transition_after(handler, outcome, used=0, now=now)
        has_failed = isinstance(outcome, Failed)
        return [Tried(None if has_failed else ctx, RunStatus(result.status), result.code) for _, ctx in batch]


def planner(database: Database, registry: Registry, settings: Settings, clock: Clock) -> Planner:
    """Makes plans with these handlers. Raises SettingsError when a plugin refuses its options."""
    require_options(registry, settings.handler_options)
    trier = Trier(Contexts(clock, settings.handler_options))
    return Planner(
        database=database,
        predictor=Predictor(database=database, handlers=registry, attempt=trier),
        clock=clock,
    )


@asynccontextmanager
async def applying(
    database: Database, registry: Registry, settings: Settings, *, rate_per_s: float
) -> AsyncIterator[Apply]:
    """What applies a plan, on the deployment's log. Raises BrokerError when that does not answer."""
    clock = await shared_clock(database)
    broker = log_parts.open_log(settings)
    try:
        await broker.start()
        yield Apply(
            planner=planner(database, registry, settings, clock),
            broker=broker,
            topic=log_parts.topic(settings, "events"),
            clock=clock,
            holder=f"{worker_id()}/replay"[-64:],
            rate_per_s=rate_per_s,
        )
    finally:
        await broker.stop()
