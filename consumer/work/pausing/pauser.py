"""Pauser: carries out what the rules decide: pauses a handler, at once here and in the ledger for everybody."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime

import structlog

from consumer.clock import Clock
from consumer.errors import HandlerTimeout
from consumer.ledger import Database, audit
from consumer.ledger.handling import handlers
from consumer.ledger.handling.handlers import ALL
from consumer.ledger.tables import RunStatus
from consumer.plugin import Handler
from consumer.telemetry.loop_watch import Blocked
from consumer.work.dispatch.result_writer import Result
from consumer.work.execution.loop_pool import TASK_PREFIX, Harm
from consumer.work.ingest.ingest import Taken
from consumer.work.observer import Observer
from consumer.work.pausing.rules import PauseRules
from consumer.work.registry import Registry

BY = "guard"

_log = structlog.get_logger(__name__)


class Pauser:
    """`on_pause` is told at once which handler must not start anything any more, and for which application (ALL: for
    all). `applications`: those that are set up; where there are several, one's dead runs pause the handler for that
    one alone."""

    def __init__(
        self,
        *,
        database: Database,
        registry: Registry,
        clock: Clock,
        observer: Observer,
        worker: str,
        applications: Collection[str] = (),
        on_pause: Callable[[str, str], None] = lambda _name, _application: None,
    ) -> None:
        self._database = database
        self._registry = registry
        self._clock = clock
        self._observer = observer
        self._worker = worker
        self._rules = PauseRules()
        self._are_several = len(applications) > 1
        self._unstored: dict[tuple[str, str], str] = {}
        self.on_pause = on_pause

    @property
    def unstored(self) -> frozenset[tuple[str, str]]:
        """What is paused here and not yet in the ledger: (handler, application), with ALL where it is for all."""
        return frozenset(self._unstored)

    def taken(self, taken: Taken) -> None:
        """A batch was stored."""
        for run in taken.runs:
            handler = self._registry.get(run.handler)
            if handler is not None and handler.transactional and (run.attempts or run.code):
                self._pause(run.handler, self._rules.hung(run.handler, hung=False))
                self._ended(handler, run.application, run.status)

    def result(self, result: Result) -> None:
        """An attempt of the dispatcher was stored."""
        finish = result.finish
        handler = self._registry.get(finish.run.handler)
        if handler is not None:
            hung = handler.transactional and finish.code == HandlerTimeout.code
            self._pause(handler.name, self._rules.hung(handler.name, hung=hung))
            self._ended(handler, finish.run.application, finish.status)

    def harm(self, harm: Harm) -> None:
        """An effect handler blocked the loop it ran on."""
        self._observer.blocked(harm.handler)
        if harm.lost:
            self._pause(harm.handler, self._rules.lost(harm.handler, harm.lost))

    def cut(self, harm: Harm) -> None:
        """A transactional handler blocked the worker's own loop and was cut off."""
        self._pause(harm.handler, self._rules.cut(harm.handler))

    def deadly(self, name: str) -> None:
        """The process ended while it ran, on one event and on another."""
        self._pause(name, self._rules.deadly(name))

    def blocked(self, found: Blocked) -> None:
        """The worker's own loop stood still; only a transactional handler can be blamed for it."""
        task = found.task or ""
        if not task.startswith(TASK_PREFIX):
            return
        name = task.removeprefix(TASK_PREFIX)
        _log.error("handler_blocks_the_worker", handler=name, seconds=round(found.seconds, 3), where=found.at)
        self._observer.blocked(name)
        self._pause(name, self._rules.blocked(name))

    def abandoned(self, running: Mapping[str, int]) -> None:
        """How many attempts go on although they are over, by handler."""
        for name, count in running.items():
            self._pause(name, self._rules.abandoned(name, count))

    def resumed(self, name: str, application: str = ALL) -> None:
        """An operator let the handler go on, for all or for this application alone."""
        self._rules.forget(name, application)

    async def store(self) -> None:
        """Put the pauses into the ledger, with an audit row each. Raises LedgerError; call again then."""
        for (name, application), reason in list(self._unstored.items()):
            now = self._clock.now()
            await pause_in(self._database, name, reason, actor=self._worker, now=now, application=application)
            del self._unstored[name, application]

    def _ended(self, handler: Handler, application: str, status: RunStatus) -> None:
        whose = application if self._are_several else ALL
        self._pause(handler.name, self._rules.saw(handler, status, whose), whose)
        if self._are_several:
            self._pause(handler.name, self._rules.saw_of_several(handler, status, whose))

    def _pause(self, name: str, reason: str | None, application: str = ALL) -> None:
        if reason is None:
            return
        handler = self._registry.get(name)
        whose = {} if application == ALL else {"application": application}
        only = f" --application {application}" if whose else ""
        _log.error("handler_paused_itself", handler=name, reason=reason, runbook=handler.runbook if handler else None,
                   resume=f"consumer handlers resume {name}{only} --reason ...", **whose)  # fmt: skip
        self._observer.stopped(name)
        self._unstored[name, application] = reason
        self.on_pause(name, application)


async def pause_in(
    database: Database, name: str, reason: str, *, actor: str, now: datetime, application: str = ALL
) -> None:
    """Pause a handler in the ledger, for all workers, with an audit row: for one application where one is given. One
    that is paused stays so, for its first reason. Raises LedgerError."""
    async with database.transaction() as session:
        await handlers.take_turns(session, name)
        if not (await handlers.paused(session)).holds(name, application):
            await handlers.pause(session, name, by=BY, reason=reason, now=now, application=application)
            audit.note(
                session,
                at=now,
                application=application,
                actor=actor,
                action="handler.pause",
                subject=f"handler:{name}",
                reason=reason,
            )
