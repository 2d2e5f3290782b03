"""Unit of work: what one transaction of the worker is going to store, and how runs begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import orjson
import structlog
from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import Event
from consumer.ledger import audit
from consumer.ledger.audit import Noted
from consumer.ledger.handling import attempts, dead, outbox, runs
from consumer.ledger.handling.attempts import Attempt
from consumer.ledger.handling.events import EventKey
from consumer.ledger.handling.outbox import Emitted
from consumer.ledger.handling.runs import Run
from consumer.ledger.reading import read_requests
from consumer.ledger.tables import RunStatus
from consumer.plugin import AuditNote, Context, Emission, Handler, ReadRequest
from consumer.telemetry.way import onwards
from consumer.wire import SEED
from consumer.work.transition import Transition, is_of_several

_log = structlog.get_logger(__name__)
SEEDED: Final = Transition(status=RunStatus.SKIPPED, blocking=False, attempts=0, code="seeded")
RENAMED: Final = Transition(status=RunStatus.SKIPPED, blocking=False, attempts=0, code="done_by_other_name")


@dataclass(frozen=True)
class Incoming:
    """An event as it came, and the plan that sent it, if any. `heard_at`: when its webhook was received, if it, or
    another copy of it in the same batch, came by one. `others`: what came in the same batch under its id with another
    body."""

    event: Event
    plan: str | None = None
    heard_at: datetime | None = None
    others: tuple[Event, ...] = ()

    @cached_property
    def id(self) -> EventKey:
        """What makes it unique."""
        return (self.event.application, self.event.id)


@dataclass
class UnitOfWork:
    """What a transaction is going to store. `timers`: those of `emitted` that were to come later, which may be
    withdrawn. `relayed`: how many of the derived events it stored are due for the relay."""

    now: datetime
    runs: list[Run] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    emitted: list[Emitted] = field(default_factory=list)
    reads: dict[str, list[ReadRequest]] = field(default_factory=dict)
    notes: list[Noted] = field(default_factory=list)
    dead_in_a_row: Counter[tuple[str, str]] = field(default_factory=Counter)
    dead_rows: dict[str, list[str]] = field(default_factory=dict)
    timers: set[EventKey] = field(default_factory=set)
    withdrawn: set[EventKey] = field(default_factory=set)
    relayed: int = 0

    def add(self, run: Run) -> None:
        """A run as it is to be stored."""
        self.runs.append(run)
        if run.status is RunStatus.DEAD:
            self.dead_in_a_row[run.handler, run.application] += 1
            self.dead_rows.setdefault(run.handler, []).append(run.application)
        elif run.status is RunStatus.SUCCEEDED and self.dead_in_a_row:
            self.dead_in_a_row[run.handler, run.application] = 0
            self.dead_rows.pop(run.handler, None)

    def is_too_deadly(self, handler: Handler, application: str) -> bool:
        """Whether as many of the handler's newest runs here are dead as pause it, of this application or of several:
        then it must not go on like that."""
        limit, row = handler.pause_after, self.dead_rows.get(handler.name, ())
        return 0 < limit <= self.dead_in_a_row[handler.name, application] or is_of_several(row, limit)

    async def store(self, session: AsyncSession, done_at: datetime) -> None:
        """Write everything; the order keeps locks in one order on every worker. `done_at`: a time after the last call,
        as a handler may have waited for another transaction's lock, and was done after that."""
        await runs.add(session, self.runs, self.now, done_at)
        await attempts.add(session, self.attempts)
        await dead.bury(session, [run.id for run in self.runs if run.status is RunStatus.DEAD], self.now)
        await self.emit(session, self.emitted)
        for application in sorted(self.reads):
            await read_requests.ask(session, application, self.reads[application], self.now)
        await audit.add(session, self.notes)

    async def emit(self, session: AsyncSession, emitted: Sequence[Emitted]) -> Sequence[Row[Any]]:
        """Take back what was withdrawn, and put these, which are all that was emitted since, into the outbox; returns
        the rows of those that must be taken in this transaction. In this order: what is emitted once more comes at its
        new time, with its new data."""
        again = {one.id: one for one in emitted if one.id in self.withdrawn and self._is_armed(one)}
        await outbox.withdraw(session, self.withdrawn, self.now)
        self.emitted, self.timers, self.withdrawn = [], set(), set()
        taken = await outbox.put(session, emitted, self.now)
        for event_id in await outbox.spent(session, again, self.now) if again else ():
            one = again[event_id]
            _log.error("timer_is_spent", handler=one.handler, type=one.emission.type, event_id=one.emission.id)
        self.relayed += sum(one.is_due(self.now) for one in emitted) - len(taken)
        return taken

    def _is_armed(self, one: Emitted) -> bool:
        """Whether it is to come later; a replay does what was done then, when it may have come."""
        return one.plan is None and not one.is_due(self.now)

    def take_from(self, ctx: Context, handler: Handler, event: Event, plan: str | None) -> None:
        """What a handler that succeeded asked for; what it emitted belongs to the same plan, unless it says of itself
        whether it is history."""
        if ctx.withdrawn:
            gone = {(event.application, one) for one in ctx.withdrawn}
            if not gone.isdisjoint(self.timers):
                self.emitted = [one for one in self.emitted if one.id not in gone or one.is_due(self.now)]
            self.withdrawn |= gone
        for emission in ctx.emissions:
            one = Emitted(emission=emission, cause=event, handler=handler.name, plan=_plan_of(emission, plan))
            self.emitted.append(one)
            if emission.not_before is not None:
                self.timers.add(one.id)
        if ctx.reads:
            asked = [replace(one, traceparent=onwards(event)) for one in ctx.reads]
            self.reads.setdefault(event.application, []).extend(asked)
        self.notes.extend(_noted(note, handler, event, self.now) for note in ctx.notes)


def _plan_of(emission: Emission, plan: str | None) -> str | None:
    if emission.is_history is None:
        return plan
    return SEED if emission.is_history else None if plan == SEED else plan


def waiting(handler: Handler, incoming: Incoming, seq: int, now: datetime, *, blocked: bool) -> Run:
    """The run of a handler that will be done outside this transaction: due now, or `blocked` behind its lane."""
    begins = Transition(
        status=runs.first_status(blocked=blocked),
        blocking=True,
        attempts=0,
        next_at=None if blocked else now,
    )
    return finished(handler, incoming, seq, begins)


def skipped(handler: Handler, incoming: Incoming, seq: int) -> Run:
    """The run of a handler that does not act on what a seed brought."""
    return finished(handler, incoming, seq, SEEDED)


def done_by(other: str, handler: Handler, incoming: Incoming, seq: int) -> Run:
    """The run of a handler whose work for this event is done by one that may be the same under `other` name."""
    return finished(handler, incoming, seq, replace(RENAMED, reason=f"{other} of another version has it"))


def finished(handler: Handler, incoming: Incoming, seq: int, transition: Transition) -> Run:
    """The run of a handler that was called in this transaction, as it ended."""
    event = incoming.event
    return Run(
        application=event.application,
        event_id=event.id,
        handler=handler.name,
        seq=seq,
        key=event.key,
        status=transition.status,
        blocking=transition.blocking,
        attempts=transition.attempts,
        next_at=transition.next_at,
        code=transition.code,
        reason=transition.reason,
        fingerprint=transition.fingerprint,
        code_version=handler.version,
        plan=incoming.plan,
        trace=transition.trace,
    )


def _noted(note: AuditNote, handler: Handler, event: Event, now: datetime) -> Noted:
    return Noted(
        at=now,
        application=event.application,
        actor=handler.name[:100],
        action=note.action,
        subject=note.subject,
        before=orjson.dumps(dict(note.before)).decode(),
        after=orjson.dumps(dict(note.after)).decode(),
        reason=event.id,
        code_version=handler.version,
    )
