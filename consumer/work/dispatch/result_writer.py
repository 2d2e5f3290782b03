"""Result writer: what became of claimed runs, stored in groups; storing one lets the next of its lane go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import SET_BACK, Clock
from consumer.errors import LedgerError
from consumer.events import Event
from consumer.ledger import Database
from consumer.ledger.handling import attempts, dead, runs
from consumer.ledger.handling.attempts import Attempt
from consumer.ledger.handling.lanes import RunId
from consumer.ledger.handling.runs import ClaimedRun, Finish, Finished
from consumer.ledger.tables import RunStatus
from consumer.plugin import Handler
from consumer.telemetry.logs import Condition
from consumer.work.outcome import Outcome
from consumer.work.transition import Transition, attempt_row, transition_after

GROUP_MAX = 200
RETRY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Result:
    """A claimed run after its attempt at `event`, which ended then and took so many `seconds`."""

    finish: Finish
    attempt: Attempt | None
    seconds: float
    ended_at: datetime
    event: Event

    @property
    def run(self) -> ClaimedRun:
        """The run it is about."""
        return self.finish.run

    @property
    def was_tried(self) -> bool:
        """Whether there was an attempt: a run may have been put off instead."""
        return self.attempt is not None or self.finish.status is RunStatus.SUCCEEDED


def conclude(
    handler: Handler, run: ClaimedRun, event: Event, outcome: Outcome, *, worker: str, started_at: datetime,
    now: datetime,
) -> Result:  # fmt: skip
    """What an outcome makes of a claimed run. A success at the first try leaves no attempt row."""
    transition = transition_after(handler, outcome, used=run.attempts, now=now)
    attempt = None
    if transition.status is not RunStatus.SUCCEEDED or run.attempts:
        attempt = attempt_row(
            handler, event, transition, number=run.attempts + 1, worker=worker, started_at=started_at, finished_at=now
        )
    finish = _finish(handler, run, transition)
    seconds = (now - started_at).total_seconds()
    return Result(finish=finish, attempt=attempt, seconds=seconds, ended_at=now, event=event)


def untried(handler: Handler, run: ClaimedRun, event: Event, outcome: Outcome, *, now: datetime) -> Result:
    """What becomes of a claimed run that was put off without an attempt."""
    finish = _finish(handler, run, transition_after(handler, outcome, used=run.attempts, now=now))
    return Result(finish=finish, attempt=None, seconds=0.0, ended_at=now, event=event)


def _finish(handler: Handler, run: ClaimedRun, transition: Transition) -> Finish:
    return Finish(
        run=run,
        status=transition.status,
        blocking=transition.blocking,
        attempts=transition.attempts,
        next_at=transition.next_at,
        code=transition.code,
        reason=transition.reason,
        fingerprint=transition.fingerprint,
        code_version=handler.version,
    )


async def store(session: AsyncSession, results: Sequence[Result], *, worker: str, now: datetime) -> Finished:
    """Write results in this transaction. One that succeeded although another worker's attempt had died of it leaves an
    attempt in any case, which tells why the run is no longer dead."""
    await attempts.add(session, [result.attempt for result in results if result.attempt is not None])
    done = await runs.finish(session, [_by_now(result, now) for result in results], worker=worker, now=now)
    died = [result.run.id for result in results if result.finish.status is RunStatus.DEAD]
    await dead.bury(session, died, now)
    if revived := [result for result in results if result.run.id in done.revived]:
        await attempts.add(session, [_success(result, worker) for result in revived if result.attempt is None])
    return done


def _by_now(result: Result, now: datetime) -> Finish:
    """Its next time counts from now where the clock was set back between its end and its storing: nothing else shows
    that a run waits by a wrong clock."""
    ahead, next_at = result.ended_at - now, result.finish.next_at
    if ahead <= SET_BACK or next_at is None:
        return result.finish
    return replace(result.finish, next_at=next_at - ahead)


def _success(result: Result, worker: str) -> Attempt:
    finish, run = result.finish, result.run
    return Attempt(
        application=run.application,
        event_id=run.event_id,
        handler=run.handler,
        number=finish.attempts,
        outcome=finish.status.value,
        code=None,
        reason=None,
        fingerprint=None,
        code_version=finish.code_version,
        worker=worker,
        started_at=result.ended_at - timedelta(seconds=result.seconds),
        finished_at=result.ended_at,
    )


class ResultWriter:
    """Collects results of effect handlers and stores them together. A result is kept until the ledger has it. What was
    stored by a commit that nobody acknowledged is told as stored, though the next time it was there already."""

    def __init__(
        self, *, database: Database, clock: Clock, worker: str, on_stored: Callable[[Sequence[Result], Finished], None]
    ) -> None:
        self._database = database
        self._clock = clock
        self._worker = worker
        self._on_stored = on_stored
        self._waiting: list[Result] = []
        self._told: frozenset[RunId] = frozenset()
        self._there = asyncio.Event()
        self._unstored = Condition("results_not_stored")

    def add(self, result: Result) -> None:
        """Store it soon."""
        self._waiting.append(result)
        self._there.set()

    async def run(self) -> None:
        """Store until cancelled; an unavailable ledger is tried again."""
        while True:
            await self._there.wait()
            try:
                await self.flush()
                self._unstored.over()
            except LedgerError as error:
                self._unstored.lasts(error, waiting=len(self._waiting))
                await self._clock.sleep(RETRY_S)

    async def flush(self) -> None:
        """Store everything that waits. Raises LedgerError when the ledger cannot take it."""
        while self._waiting:
            group = self._waiting[:GROUP_MAX]
            async with self._database.transaction() as session:
                done = await store(session, group, worker=self._worker, now=self._clock.now())
                self._told |= done.stored
            del self._waiting[: len(group)]
            done, self._told = replace(done, stored=self._told), frozenset()
            self._on_stored(group, done)
        self._there.clear()
