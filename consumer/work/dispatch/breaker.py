"""Breaker: when what a handler depends on does not answer, its runs wait instead of failing one by one (case R11).

Pure: a value and its transitions. Closed: unreachable failures in a row are counted. Open: no run starts until a
time. Then half-open: one run goes as a probe; it closes the breaker or opens it again, for longer.

An attempt that failed because of that is *spared*, it costs nothing, while the breaker is open; and a run's last
attempt is spared unless another run just succeeded, which proves that the dependency answers others.

A poison event looks like an outage for as long as nothing else is tried. Two things tell them apart. Probes go round:
what failed last is due last, so another event is the next probe when there is one, and its success closes the breaker
and has the poison's failures count. When there is no other, an outage is the better guess for `patience_s`; a run
older than that, and still the only one that fails, has its failures counted again, so that it comes to an end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

PATIENCE_S = 3 * 86400.0
PROBE_S, PUT_OFF_MOST_S = 1.0, 60.0
PUT_OFF_AT_ONCE, PUT_OFF_EVERY_S = 100, 0.5
BEHIND = 0.1
"""What failed is due behind those that were put off to the same probe, by this share of the wait."""


@dataclass(frozen=True, kw_only=True)
class Strike:
    """An attempt that did not get through, of which run and how old that is (seconds).

    `is_last`: the run would be dead by it. `certain`: the failure itself says so (a refused connection), and is not
    just a handler that was not done in time, which may be its own fault.
    """

    run: str
    age_s: float = 0.0
    is_last: bool = False
    certain: bool = True


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Until when runs of one application were put off, by a monotonic clock: none beyond `at_s`, where `count` come.

    Of a handler no more than PUT_OFF_AT_ONCE come in any PUT_OFF_EVERY_S, of all applications that wait together: what
    many cost everybody else does not grow with them. In return the last begin later when the wait is over: of 10,000,
    within 50 seconds.
    """

    at_s: float
    count: int = 0

    def then(self, at_s: float, at_once: int) -> tuple[Spread, float]:
        """With one more, that waits until `at_s` or longer, and until when it does; `at_once` may come together."""
        following_s = self.at_s + PUT_OFF_EVERY_S
        if at_s >= following_s:
            after = Spread(at_s=at_s, count=1)
        elif self.count < at_once:
            after = Spread(at_s=self.at_s, count=self.count + 1)
        else:
            after = Spread(at_s=following_s, count=1)
        return after, max(at_s, after.at_s)


@dataclass(frozen=True, kw_only=True)
class BreakerPolicy:
    """`after` failures in a row open it (0: never); it stays open for `first_s`, growing by `factor` to `ceiling_s`.

    A run that fails alone is spared for `patience_s` of its life: longer than any outage that catches up by itself.
    """

    after: int = 5
    first_s: float = 1.0
    factor: float = 2.0
    ceiling_s: float = 60.0
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """One handler's breaker in one process, for one application's runs."""

    streak: int = 0
    has_succeeded: bool = False
    open_since: datetime | None = None
    until: datetime | None = None
    wait_s: float = 0.0
    reason: str = ""
    probing: bool = False
    failing: str | None = None
    is_alone: bool = True

    @property
    def is_open(self) -> bool:
        """Whether runs wait (half-open included)."""
        return self.open_since is not None

    @property
    def explanation(self) -> str:
        """Why runs wait, for an operator: an outage, or perhaps one event that never gets through."""
        only = f" (only {self.failing} was tried)" if self.is_alone and self.failing else ""
        return f"{self.reason}{only}"

    def room(self, now: datetime, limit: int) -> int:
        """How many runs may start now, of `limit` that could."""
        if self.until is None:
            return limit
        if self.probing or self._waits(now):
            return 0
        return min(1, limit)

    def put_off_s(self, now: datetime) -> float:
        """For how long a run waits that may not start now: until the next probe; while one is under way, for as long
        again as that has taken."""
        if self.until is None:
            return 0.0
        ahead_s = (self.until - now).total_seconds()
        return ahead_s if self._waits(now) else min(max(-ahead_s, PROBE_S), PUT_OFF_MOST_S)

    def spared_s(self, now: datetime) -> float:
        """For how long one waits that did not get through and is spared: behind those that the next probe is for."""
        ahead_s = 0.0 if self.until is None else (self.until - now).total_seconds()
        return max(ahead_s, 0.0) + self.wait_s * BEHIND

    def probed(self) -> Breaker:
        """A run was started; while half-open it is the probe, and no other may start."""
        return replace(self, probing=True) if self.is_open else self

    def unprobed(self) -> Breaker:
        """The probe ended without saying anything (given back, or it asked for later)."""
        return replace(self, probing=False)

    def answered(self, *, succeeded: bool) -> Breaker:
        """An attempt got through: it succeeded, or failed in a way that is its own."""
        return _ANSWERED[self.has_succeeded or succeeded]

    def unreachable(self, policy: BreakerPolicy, now: datetime, reason: str, strike: Strike) -> tuple[Breaker, bool]:
        """An attempt did not get through; the breaker after it, and whether the attempt is spared."""
        if policy.after == 0:
            return self, False
        struck = self._struck_by(strike.run)
        is_patience_over = struck.is_alone and strike.age_s >= policy.patience_s
        if is_patience_over and strike.is_last:
            return Breaker(), False  # it is dead now, and nothing waits any more
        if self.is_open:
            return struck._again(policy, now, reason), not is_patience_over
        is_proven_up = self.has_succeeded and struck.streak == 1
        must_spare = strike.is_last and strike.certain and not is_proven_up
        if struck.streak < policy.after and not must_spare:
            return struck, False
        wait_s = policy.first_s
        until = now + timedelta(seconds=wait_s)
        opened = replace(struck, open_since=now, until=until, wait_s=wait_s, reason=reason)
        return opened, not is_patience_over

    def _waits(self, now: datetime) -> bool:
        """Whether the next probe is to come. One that is further off than it ever waits was put there by a clock that
        was ahead, and is due."""
        return self.until is not None and timedelta(0) < self.until - now <= timedelta(seconds=self.wait_s)

    def _struck_by(self, run: str) -> Breaker:
        is_alone = self.is_alone and self.failing in (None, run)
        return replace(self, streak=self.streak + 1, failing=run, is_alone=is_alone)

    def _again(self, policy: BreakerPolicy, now: datetime, reason: str) -> Breaker:
        if not self.probing or self._waits(now):
            return self  # it was under way when the breaker opened: nothing new
        wait_s = min(self.wait_s * policy.factor, policy.ceiling_s)
        return replace(self, until=now + timedelta(seconds=wait_s), wait_s=wait_s, reason=reason, probing=False)


_ANSWERED = {has_succeeded: Breaker(has_succeeded=has_succeeded) for has_succeeded in (False, True)}
