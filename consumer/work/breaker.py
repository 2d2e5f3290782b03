"""Breaker: when what a handler depends on does not answer, its runs wait instead of failing one by one (case R11).

Pure: a value and its transitions. Closed: unreachable failures in a row are counted. Open: no run starts until a
time. Then half-open: one run goes as a probe; it closes the breaker or opens it again, for longer.

An attempt that failed because of that is *spared*, it costs nothing, while the breaker is open; and a run's last
attempt is spared unless another run just succeeded, which proves that the dependency answers others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta


@dataclass(frozen=True, kw_only=True)
class BreakerPolicy:
    """`after` failures in a row open it (0: never); it stays open for `first_s`, growing by `factor` to `ceiling_s`."""

    after: int = 5
    first_s: float = 1.0
    factor: float = 2.0
    ceiling_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """One handler's breaker in one process."""

    streak: int = 0
    has_succeeded: bool = False
    open_since: datetime | None = None
    until: datetime | None = None
    wait_s: float = 0.0
    reason: str = ""
    probing: bool = False

    @property
    def is_open(self) -> bool:
        """Whether runs wait (half-open included)."""
        return self.open_since is not None

    def room(self, now: datetime, limit: int) -> int:
        """How many runs may start now, of `limit` that could."""
        if self.until is None:
            return limit
        if self.probing or now < self.until:
            return 0
        return min(1, limit)

    def probed(self) -> Breaker:
        """A run was started; while half-open it is the probe, and no other may start."""
        return replace(self, probing=True) if self.is_open else self

    def unprobed(self) -> Breaker:
        """The probe ended without saying anything (given back, or it asked for later)."""
        return replace(self, probing=False)

    def answered(self, *, succeeded: bool) -> Breaker:
        """An attempt got through: it succeeded, or failed in a way that is its own."""
        return Breaker(has_succeeded=self.has_succeeded or succeeded)

    def unreachable(
        self, policy: BreakerPolicy, now: datetime, reason: str, *, is_last: bool, certain: bool = True
    ) -> tuple[Breaker, bool]:
        """An attempt did not get through; the breaker after it, and whether the attempt is spared.

        `is_last`: the run would be dead by it. `certain`: the failure itself says so (a refused connection), and is
        not just a handler that was not done in time, which may be its own fault.
        """
        if policy.after == 0:
            return self, False
        streak = self.streak + 1
        if self.is_open:
            return self._again(policy, now, reason, streak), True
        is_proven_up = self.has_succeeded and streak == 1
        must_spare = is_last and certain and not is_proven_up
        if streak < policy.after and not must_spare:
            return replace(self, streak=streak), False
        wait_s = policy.first_s
        opened = Breaker(
            streak=streak,
            has_succeeded=self.has_succeeded,
            open_since=now,
            until=now + timedelta(seconds=wait_s),
            wait_s=wait_s,
            reason=reason,
        )
        return opened, True

    def _again(self, policy: BreakerPolicy, now: datetime, reason: str, streak: int) -> Breaker:
        if not self.probing or (self.until is not None and now < self.until):
            return replace(self, streak=streak)  # it was under way when the breaker opened: nothing new
        wait_s = min(self.wait_s * policy.factor, policy.ceiling_s)
        until = now + timedelta(seconds=wait_s)
        return replace(self, streak=streak, until=until, wait_s=wait_s, reason=reason, probing=False)
