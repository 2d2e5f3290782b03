"""Pauser: carries out what the rules decide: pauses a handler, at once here and in the ledger for everybody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

import structlog

from consumer.clock import Clock
from consumer.errors import HandlerTimeout
from consumer.ledger import Database, audit
from consumer.ledger.handling import handlers
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
    """`on_pause` is told at once which handler must not start anything any more."""

    def __init__(
        self,
        *,
        database: Database,
        registry: Registry,
        clock: Clock,
        observer: Observer,
        worker: str,
        on_pause: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._registry = registry
        self._clock = clock
        self._observer = observer
        self._worker = worker
        self._rules = PauseRules()
        self._unstored: dict[str, str] = {}
        self.on_pause = on_pause

    @property
    def unstored(self) -> frozenset[str]:
        """Handlers that are paused here and not yet in the ledger."""
        return frozenset(self._unstored)

    def taken(self, taken: Taken) -> None:
        """A batch was stored."""
        for run in taken.runs:
            handler = self._registry.get(run.handler)
            if handler is not None and handler.transactional and (run.attempts or run.code):
                self._pause(run.handler, self._rules.saw(handler, run.status))

    def result(self, result: Result) -> None:
        """An attempt of the dispatcher was stored."""
        finish = result.finish
        handler = self._registry.get(finish.run.handler)
        if handler is not None:
            hung = handler.transactional and finish.code == HandlerTimeout.code
            self._pause(handler.name, self._rules.saw(handler, finish.status, hung=hung))

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
        """How many attempts ignore their cancellation, by handler."""
        for name, count in running.items():
            self._pause(name, self._rules.abandoned(name, count))

    def resumed(self, name: str) -> None:
        """An operator let the handler go on."""
        self._rules.forget(name)

    async def store(self) -> None:
        """Put the pauses into the ledger, with an audit row each. Raises LedgerError; call again then."""
        for name, reason in list(self._unstored.items()):
            await pause_in(self._database, name, reason, actor=self._worker, now=self._clock.now())
            del self._unstored[name]

    def _pause(self, name: str, reason: str | None) -> None:
        if reason is None:
            return
        handler = self._registry.get(name)
        _log.error("handler_paused_itself", handler=name, reason=reason, runbook=handler.runbook if handler else None,
                   resume=f"consumer handlers resume {name} --reason ...")  # fmt: skip
        self._observer.stopped(name)
        self._unstored[name] = reason
        self.on_pause(name)


async def pause_in(database: Database, name: str, reason: str, *, actor: str, now: datetime) -> None:
    """Pause a handler in the ledger, for everybody, with an audit row; one that is paused stays so, for its first
    reason. Raises LedgerError."""
    async with database.transaction() as session:
        if name not in await handlers.paused(session):
            await handlers.pause(session, name, by=BY, reason=reason, now=now)
            audit.note(
                session,
                at=now,
                application="",
                actor=actor,
                action="handler.pause",
                subject=f"handler:{name}",
                reason=reason,
            )
