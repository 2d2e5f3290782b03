"""Heartbeat: a process tells the ledger every few seconds that it lives, in which roles, and what its checks answer.

It has a connection of its own, so that it is heard however busy the pool is. Where there is no ledger (`serve` may be
kept from it) nothing else changes: it is said once, and tried again.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import count

import orjson
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer import __version__
from consumer.clock import Clock, SharedClock, is_set_within, until_tick
from consumer.errors import ConsumerError, LedgerUnavailable, again, code_of
from consumer.ledger import Database, processes
from consumer.ledger.engine.applied import SchemaWatch
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.processes import Proof, Pulse
from consumer.telemetry.internal import Readiness
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import Metrics

BEAT_EVERY_S = 5.0
FIRST_BEATS, FIRST_BEAT_S = 20, 0.5
"""Who begins tells soon that it is ready, and not what it was a moment after its start."""
LIMIT_S = 10.0
LAST_WORD_WITHIN_S = 3.0
REMEMBERED_BEATS = 24
WITHOUT_LEDGER = frozenset({"serve"})
"""Its heartbeat is all that it writes there: whatever the tables are, it takes webhooks."""
NO_ROOM = frozenset({"busy", "unproved_full"})
"""What webhooks are answered for which there is no room: it says nothing of an application that has none among them."""
NOT_DURABLE = NO_ROOM | {"not_durable", "failed"}

_log = structlog.get_logger(__name__)


class Heartbeat:
    """`roles`: what this process does; parts add theirs. `told`: what was refused lately, by name; it is told and makes
    nobody unready, since only the next try can show that it is over. `said`: what it says of itself (`processes`),
    by role and word. `looks`: done with each beat. `process` is unique per start."""

    def __init__(self, url: str, *, readiness: Readiness, metrics: Metrics, clock: Clock, process: str) -> None:
        self.roles: set[str] = set()
        self.told: dict[str, Callable[[], ConsumerError | None]] = {}
        self.said: dict[tuple[str, str], Callable[[], str | None]] = {}
        self.looks: list[Callable[[], None]] = []
        self._schema = SchemaWatch()
        self.told["schema"] = self._schema.refusal
        self.told["collation"] = self._schema.collation
        self._url = url
        self._readiness = readiness
        self._metrics = metrics
        self._clock = clock
        self._process = process
        self._database: Database | None = None
        self._started_at: datetime | None = None
        self._was: tuple[bool, datetime] | None = None
        self._counted: deque[tuple[int, int, Mapping[str, int]]] = deque(maxlen=REMEMBERED_BEATS)
        self._unstored = Condition("heartbeat_not_stored")
        self._refused: ConsumerError | None = None
        self._died_of: str | None = None

    def dies(self, error: BaseException) -> None:
        """The process ends by itself: its last word says why, and nobody takes it for one that was stopped."""
        why = error.sentence() if isinstance(error, ConsumerError) else ""
        self._died_of = f"{code_of(error)}: {why}".removesuffix(": ")

    async def say_that_it_died(self, error: BaseException) -> None:
        """Before it ever ran: its only word. Where there is no ledger to say it to, its own line is all there is."""
        self.dies(error)
        with suppress(ConsumerError, TimeoutError, OSError):
            async with asyncio.timeout(LAST_WORD_WITHIN_S):
                await self._beat()
        await self.stop()

    async def check(self) -> bool:
        """Whether the ledger took what was last told it: a small write every few seconds. Raises what it said."""
        if self._refused is not None:
            raise again(self._refused)
        return True

    async def agree_on_time(self) -> None:
        """What is due is due by the database's clock, whatever this machine's says. Raises LedgerError."""
        try:
            async with asyncio.timeout(LIMIT_S), self._own().reading() as session:
                await self._follow(session)
        except TimeoutError as error:
            raise LedgerUnavailable(reason=f"no answer within {LIMIT_S:g} s") from error

    async def _follow(self, session: AsyncSession) -> None:
        if isinstance(self._clock, SharedClock) and await self._clock.follow(lambda: shared_time(session)):
            _log.warning("clock_differs", ahead_s=round(self._clock.ahead.total_seconds(), 1))

    def _own(self) -> Database:
        # The cause of a locked ledger is had before the beat's time is over, and is told as what it is.
        self._database = self._database or Database(self._url, pool_size=1, create=False, lock_s=LIMIT_S * 0.8)
        return self._database

    async def beat(self) -> None:
        """Tell the ledger now. Where it cannot be told, that is told with the next beat that can be."""
        for look in self.looks:
            look()
        await self._try(self._beat)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then says that it ends."""
        try:
            for beats in count():
                if stop.is_set():
                    break
                await self.beat()
                is_new = beats < FIRST_BEATS and (self._was is None or not self._was[0])
                await is_set_within(stop, until_tick(self._clock, FIRST_BEAT_S if is_new else BEAT_EVERY_S))
            if self._database is not None:  # else it never had a ledger: nothing is there to be told
                await self._try(self._end)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Close its connection."""
        database, self._database = self._database, None
        if database is not None:
            await database.stop()

    async def _try(self, step: Callable[[], Awaitable[None]]) -> None:
        """A beat that cannot be told harms nobody: `status` sees that it is missing."""
        try:
            async with asyncio.timeout(LIMIT_S):
                await step()
        except (ConsumerError, TimeoutError, OSError) as error:
            self._unstored.lasts(error)
            self._refused = error if isinstance(error, ConsumerError) else LedgerUnavailable(reason=code_of(error))
        else:
            self._unstored.over()
            self._refused = None

    async def _beat(self) -> None:
        ready, _, checks = await self._readiness.answers()
        problems = self._readiness.problems
        self._show(problems)
        async with self._own().transaction() as session:
            await self._follow(session)
            if self.roles - WITHOUT_LEDGER:
                await self._schema.look(session)
            refused = {name: error for name, ask in self.told.items() if (error := ask()) is not None}
            proofs = {name: _proof(problems.get(name)) for name in checks}
            proofs |= {name: Proof(code=error.code, reason=error.sentence()) for name, error in refused.items()}
            now = await shared_time(session)
            await processes.after_set_back(session, now)
            is_first = self._started_at is None
            self._started_at = min(self._started_at or now, now)
            if is_first:
                await processes.forget_replaced(session, sorted(self.roles), socket.gethostname(), now)
            if self._was is None or self._was[0] != ready or self._was[1] > now:
                self._was = (ready, now)
            answered, unstored, flooded = self._webhooks()
            pulses = [
                Pulse(
                    process=self._process,
                    role=role,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    version=__version__,
                    started_at=self._started_at,
                    ready=ready,
                    since=self._was[1],
                    checks=proofs,
                    answered=answered if role == "serve" else 0,
                    refused=unstored if role == "serve" else 0,
                    said=self._says(role) | (flooded if role == "serve" else {}),
                )
                for role in sorted(self.roles)
            ]
            if pulses:
                await processes.beat(session, pulses, now)

    def _show(self, problems: Mapping[str, tuple[str, str]]) -> None:
        """Before the ledger is told, which may be what is away."""
        self._metrics.check_failing.clear()
        for name, (code, _) in problems.items():
            self._metrics.check_failing.labels(name, code).set(1)

    async def _end(self) -> None:
        if self._died_of is not None:
            await self._beat()
            return
        async with self._own().transaction() as session:
            await processes.ended(session, self._process, await shared_time(session))

    def _says(self, role: str) -> dict[str, str]:
        said = {word: text for (of, word), ask in self.said.items() if of == role and (text := ask()) is not None}
        return said if self._died_of is None else {**said, processes.DIED: self._died_of[: processes.DIED_CHARS]}

    def _webhooks(self) -> tuple[int, int, dict[str, str]]:
        """How many webhooks were answered since REMEMBERED_BEATS beats ago, and how many of them with 503; and what is
        said of those that there was no room for, by application."""
        counted = self._metrics.receive_requests
        totals = counted.total(), counted.total(NOT_DURABLE), counted.each(NO_ROOM)
        before = self._counted[0] if self._counted else (0, 0, {})
        self._counted.append(totals)
        flooded = {name: more for name, one in totals[2].items() if (more := one - before[2].get(name, 0))}
        said = {processes.FLOODED: orjson.dumps(flooded).decode()} if flooded else {}
        return totals[0] - before[0], totals[1] - before[1], said


def _proof(problem: tuple[str, str] | None) -> Proof:
    code, reason = problem or (None, None)
    return Proof(code=code, reason=reason)
