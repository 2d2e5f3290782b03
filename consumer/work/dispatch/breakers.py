"""Breakers: every effect handler's breakers in this process, and what they make of outcomes (case R11).

One for each application whose events it handled: two shops may have two warehouses. While one shop's does not answer,
its runs wait at no cost, and the other's go on; the handler waits as a whole while nobody's answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from consumer.errors import HandlerTimeout
from consumer.ledger.handling import handlers
from consumer.ledger.handling.runs import ClaimedRun
from consumer.plugin import Handler, RetryLater
from consumer.retry import Failure
from consumer.telemetry.logs import Condition
from consumer.work.dispatch.breaker import PUT_OFF_AT_ONCE, Breaker, BreakerPolicy, Spread, Strike
from consumer.work.outcome import Failed, Outcome, Succeeded

LATER = datetime.max.replace(tzinfo=UTC)
LAPSES_S = 600.0
"""Ten times as long as the longest wait for a probe."""


class Breakers:
    """`on_change` is told when one opens or closes: handler's name, and whether it is open. `monotonic`: the clock by
    which it is said again that a handler waits, as its probes go on failing. `applications`: all whose runs may come;
    of those that none came of yet it is not known that nobody answers."""

    def __init__(
        self,
        on_change: Callable[[str, bool], None] = lambda _name, _open: None,
        monotonic: Callable[[], float] = time.monotonic,
        applications: Collection[str] = (),
    ) -> None:
        self._on_change = on_change
        self._monotonic = monotonic
        self._applications = frozenset(applications)
        self._asked_at: dict[tuple[str, str], float] = {}
        self._all: dict[str, dict[str, Breaker]] = {}
        self._waits: dict[tuple[str, str], Condition] = {}
        self._answered: dict[str, datetime] = {}
        self._spread: dict[tuple[str, str], Spread] = {}

    def open(self) -> Mapping[str, Breaker]:
        """What is to be told of the handlers that wait, by handler: of several applications the one that waits longest,
        and which wait, where others do not."""
        return {name: _told(of_each) for name, of_each in self._all.items() if self._waits_for_some(name)}

    def waits(self, handler: str, application: str) -> bool:
        """Whether this application's runs of the handler wait."""
        found = self._all.get(handler, {}).get(application)
        return found is not None and found.is_open

    def is_open(self, handler: str) -> bool:
        """Whether this handler waits as a whole: what it depends on answers for none of its applications."""
        of_each = self._all.get(handler, {})
        for one in of_each.values():
            if not one.is_open:
                return False
        return bool(of_each) and of_each.keys() >= self._applications

    def lapse(self) -> None:
        """Close those that no run came to for long, as a probe would: its last may have been another worker's, or an
        operator's, and nothing here waits."""
        oldest = self._monotonic() - LAPSES_S
        for handler, of_each in self._all.items():
            for application, one in of_each.items():
                if one.is_open and not one.probing and self._asked_at[handler, application] <= oldest:
                    self._set(handler, application, Breaker())

    def answered(self) -> Mapping[str, datetime]:
        """When an attempt last succeeded, of which nobody has noted it yet, by handler; without those that are open
        now."""
        return {name: at for name, at in self._answered.items() if not self._waits_for_some(name)}

    def noted(self, answered: Mapping[str, datetime]) -> None:
        """What `answered` said is in the ledger."""
        self._answered = {name: at for name, at in self._answered.items() if answered.get(name) != at}

    def room(self, handler: Handler, now: datetime, limit: int) -> int:
        """How many of the handler's runs may be claimed to start now, of `limit` that could. Where all of several
        applications wait and one's probe is due, more than may start: others' runs may be due before any of its own."""
        if not self.is_open(handler.name):
            return limit
        rooms = [one.room(now, 1) for one in self._all[handler.name].values()]
        return limit if len(rooms) > 1 and any(rooms) else min(limit, sum(rooms))

    def start(self, handler: Handler, run: ClaimedRun, now: datetime) -> Failed | None:
        """A run is started; while its application's breaker is half-open it is the probe. One that may not start, since
        only others' may, is put off: what it ends with, at no cost and untried."""
        found = self._all.get(handler.name, {}).get(run.application)
        if found is None or not found.is_open:
            return None
        if not found.room(now, 1):
            after_s = self._put_off_s((handler.name, run.application), found, now)
            return Failed(Failure(RetryLater.code, found.reason, after_s=after_s), "")
        self._all[handler.name][run.application] = found.probed()
        return None

    def forget(self, handler: str, application: str = handlers.ALL) -> None:
        """The handler was resumed by an operator, for all or for this application: it starts anew."""
        for one in list(self._all.get(handler, {})):
            if application in (handlers.ALL, one):
                self._set(handler, one, Breaker())

    def judge(self, handler: Handler, run: ClaimedRun, outcome: Outcome, now: datetime) -> Outcome:
        """Take a run's outcome in; returns it as it counts: a spared failure costs no attempt and has its time."""
        name, application = handler.name, run.application
        found = self._all.get(name, {}).get(application, Breaker())
        match outcome:
            case Succeeded():
                self._answered[name] = now
                self._set(name, application, found.answered(succeeded=True))
                return outcome
            case Failed(failure, _) if failure.unreachable and not failure.permanent:
                strike = Strike(
                    run=f"{application}/{run.event_id}",
                    age_s=(now - run.created_at).total_seconds(),
                    is_last=run.attempts + 1 >= handler.retry.attempts,
                    certain=failure.code != HandlerTimeout.code,
                )
                policy = BreakerPolicy(after=handler.breaker_after)
                after, is_spared = found.unreachable(policy, now, failure.reason, strike)
                self._set(name, application, after)
                return _spared(outcome, after, now) if is_spared else outcome
            case Failed(failure, _) if failure.after_s is not None:
                self._set(name, application, found.unprobed())
                return outcome
            case Failed():
                self._set(name, application, found.answered(succeeded=False))
                return outcome

    def _put_off_s(self, whose: tuple[str, str], found: Breaker, now: datetime) -> float:
        now_s = self._monotonic()
        at_s = now_s + found.put_off_s(now)
        before = self._spread.get(whose, Spread(at_s=at_s))
        waiting = sum(one.is_open for one in self._all[whose[0]].values())
        self._spread[whose], until_s = before.then(at_s, max(1, PUT_OFF_AT_ONCE // waiting))
        return until_s - now_s

    def _waits_for_some(self, handler: str) -> bool:
        return any(one.is_open for one in self._all.get(handler, {}).values())

    def _set(self, handler: str, application: str, after: Breaker) -> None:
        self._asked_at[handler, application] = self._monotonic()
        of_each = self._all.setdefault(handler, {})
        if of_each.get(application) is after:
            return  # one success after another
        was_open = self._waits_for_some(handler)
        of_each[application] = after
        self._say(handler, application, after)
        if (is_open := self._waits_for_some(handler)) != was_open:
            self._on_change(handler, is_open)

    def _say(self, handler: str, application: str, after: Breaker) -> None:
        whose = (handler, application)
        if after.is_open:
            waits = Condition(
                "handler_waits", level="error", monotonic=self._monotonic, handler=handler, application=application
            )
            because = "what it depends on does not answer"
            self._waits.setdefault(whose, waits).lasts(
                "unreachable", because=because, reason=after.reason, failures=after.streak
            )
        elif whose in self._waits:
            self._waits.pop(whose).over()


def _told(of_each: Mapping[str, Breaker]) -> Breaker:
    waiting = {application: one for application, one in of_each.items() if one.is_open}
    longest = min(waiting.values(), key=lambda one: one.open_since or LATER)
    if len(waiting) == len(of_each):
        return longest
    return replace(longest, reason=handlers.only(waiting, longest.reason))


def _spared(outcome: Failed, breaker: Breaker, now: datetime) -> Failed:
    return replace(outcome, failure=replace(outcome.failure, after_s=breaker.spared_s(now)))
