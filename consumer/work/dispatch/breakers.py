"""Breakers: every effect handler's breaker in this process, and what they make of outcomes (case R11)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from consumer.errors import HandlerTimeout
from consumer.ledger.handling.runs import ClaimedRun
from consumer.plugin import Handler
from consumer.telemetry.logs import Condition
from consumer.work.dispatch.breaker import Breaker, BreakerPolicy, Strike
from consumer.work.outcome import Failed, Outcome, Succeeded


class Breakers:
    """`on_change` is told when one opens or closes: handler's name, and whether it is open. `monotonic`: the clock by
    which it is said again that a handler waits, as its probes go on failing."""

    def __init__(
        self,
        on_change: Callable[[str, bool], None] = lambda _name, _open: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_change = on_change
        self._monotonic = monotonic
        self._all: dict[str, Breaker] = {}
        self._waits: dict[str, Condition] = {}
        self._answered: dict[str, datetime] = {}

    def open(self) -> Mapping[str, Breaker]:
        """Those that are open now, by handler."""
        return {name: one for name, one in self._all.items() if one.is_open}

    def is_open(self, handler: str) -> bool:
        """Whether this handler's is."""
        found = self._all.get(handler)
        return found is not None and found.is_open

    def answered(self) -> Mapping[str, datetime]:
        """When an attempt last succeeded, of which nobody has noted it yet, by handler; without those that are open
        now."""
        return {name: at for name, at in self._answered.items() if not self.is_open(name)}

    def noted(self, answered: Mapping[str, datetime]) -> None:
        """What `answered` said is in the ledger."""
        self._answered = {name: at for name, at in self._answered.items() if answered.get(name) != at}

    def room(self, handler: Handler, now: datetime, limit: int) -> int:
        """How many of the handler's runs may start now, of `limit` that could."""
        found = self._all.get(handler.name)
        return limit if found is None else found.room(now, limit)

    def started(self, handler: Handler) -> None:
        """Runs of the handler were started; while it is half-open that is the probe."""
        found = self._all.get(handler.name)
        if found is not None and found.is_open:
            self._all[handler.name] = found.probed()

    def forget(self, handler: str) -> None:
        """The handler was resumed by an operator: it starts anew."""
        self._set(handler, Breaker())

    def judge(self, handler: Handler, run: ClaimedRun, outcome: Outcome, now: datetime) -> Outcome:
        """Take a run's outcome in; returns it as it counts: a spared failure costs no attempt and has its time."""
        found = self._all.get(handler.name, Breaker())
        match outcome:
            case Succeeded():
                self._answered[handler.name] = now
                self._set(handler.name, found.answered(succeeded=True))
                return outcome
            case Failed(failure, _) if failure.unreachable and not failure.permanent:
                strike = Strike(
                    run=f"{run.application}/{run.event_id}",
                    age_s=(now - run.created_at).total_seconds(),
                    is_last=run.attempts + 1 >= handler.retry.attempts,
                    certain=failure.code != HandlerTimeout.code,
                )
                policy = BreakerPolicy(after=handler.breaker_after)
                after, is_spared = found.unreachable(policy, now, failure.reason, strike)
                self._set(handler.name, after)
                return _spared(outcome, after, now) if is_spared else outcome
            case Failed(failure, _) if failure.after_s is not None:
                self._set(handler.name, found.unprobed())
                return outcome
            case Failed():
                self._set(handler.name, found.answered(succeeded=False))
                return outcome

    def _set(self, handler: str, after: Breaker) -> None:
        before = self._all.get(handler, Breaker())
        self._all[handler] = after
        self._say(handler, after)
        if after.is_open != before.is_open:
            self._on_change(handler, after.is_open)

    def _say(self, handler: str, after: Breaker) -> None:
        if after.is_open:
            waits = Condition("handler_waits", level="error", monotonic=self._monotonic, handler=handler)
            because = "what it depends on does not answer"
            self._waits.setdefault(handler, waits).lasts(
                "unreachable", because=because, reason=after.reason, failures=after.streak
            )
        elif handler in self._waits:
            self._waits.pop(handler).over()


def _spared(outcome: Failed, breaker: Breaker, now: datetime) -> Failed:
    until_s = (breaker.until - now).total_seconds() if breaker.until is not None else 0.0
    return replace(outcome, failure=replace(outcome.failure, after_s=max(until_s, 0.0)))
