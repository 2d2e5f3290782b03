"""Retry policy, the pure decision what becomes of a failed attempt (cases H3, R10), and when a failure that lasts is
worth a line again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

OnDead = Literal["block", "continue"]

AGAIN_S: Final = 60.0
AGAIN_MAX_S: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how far apart a handler is tried.

    `attempts` counts the first try; waits grow by `factor` from `first_s` up to `ceiling_s`, each shortened by up
    to `jitter` (a share of 1) so that a burst of failures does not come back as a burst.
    """

    attempts: int = 8
    first_s: float = 1.0
    factor: float = 3.0
    ceiling_s: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= 1000:
            raise ValueError("attempts must be from 1 to 1000")
        if self.first_s < 0 or self.factor < 1 or self.ceiling_s < self.first_s or not 0 <= self.jitter < 1:
            raise ValueError("waits must not be negative, must grow and stay under their ceiling")

    def wait_s(self, attempt: int, chance: float) -> float:
        """Seconds to wait after failed attempt number `attempt` (from 1); `chance` is from 0 to 1."""
        exponent = min(attempt - 1, 64)
        full = min(self.first_s * self.factor**exponent, self.ceiling_s)
        return full * (1 - self.jitter * chance)


@dataclass(frozen=True)
class RetryAt:
    """Try again at `at`. `counted` says whether the attempt was used up."""

    at: datetime
    counted: bool = True


@dataclass(frozen=True)
class Dead:
    """No further attempt; `reason` is one line."""

    reason: str


@dataclass(frozen=True)
class Failure:
    """What an attempt ended with, normalised: `permanent` never gets another attempt, `after_s` asks for a time,
    `unreachable` says that what the handler depends on did not answer, which is not the event's fault (case R11)."""

    code: str
    reason: str
    permanent: bool = False
    after_s: float | None = None
    unreachable: bool = False


def decide(failure: Failure, *, attempt: int, policy: RetryPolicy, now: datetime) -> RetryAt | Dead:
    """What becomes of a run whose attempt number `attempt` failed. Pure, up to the jitter of the time.

    A failure that names its time (`RetryLater`) costs no attempt; a permanent one (`Reject`) is dead at once.
    """
    if failure.permanent:
        return Dead(failure.reason)
    if failure.after_s is not None:
        return RetryAt(now + timedelta(seconds=failure.after_s), counted=False)
    if attempt >= policy.attempts:
        return Dead(f"{attempt} attempts used: {failure.reason}")
    chance = random.random()  # noqa: S311 - jitter, not a secret
    return RetryAt(now + timedelta(seconds=policy.wait_s(attempt, chance)))


class Lasting:
    """One condition, known by a code. `says` is True when it begins or has a code that it did not have yet, then after
    a minute, and each time after twice as long, an hour at most. `times`: how often it was so since it began."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._since = 0.0
        self._next = 0.0
        self._seen = 0.0
        self._wait_s = AGAIN_S
        self._codes: set[str] = set()
        self.times = 0
        self.code: str | None = None

    @property
    def for_s(self) -> float:
        """Seconds it has lasted, whatever its code was meanwhile; 0 while there is none."""
        return 0.0 if self.code is None else round(self._monotonic() - self._since, 1)

    @property
    def unseen_s(self) -> float:
        """Seconds since it was last so; 0 while there is none."""
        return 0.0 if self.code is None else self._monotonic() - self._seen

    def says(self, code: str) -> bool:
        """It is so (still); whether that is worth a line."""
        now = self._seen = self._monotonic()
        if self.code is None:
            self._since = now
        self.times += 1
        self.code = code
        if code not in self._codes:  # two that take turns are no news each time
            self._codes.add(code)
            self._wait_s, self._next = AGAIN_S, now + AGAIN_S
            return True
        if now < self._next:
            return False
        self._wait_s = min(2 * self._wait_s, AGAIN_MAX_S)
        self._next = now + self._wait_s
        return True

    def over(self) -> None:
        """It is not so any more."""
        self.code, self.times = None, 0
        self._codes.clear()
