"""Send rate: how many events of a replay are sent at once, so that live work hardly notices (case R8). Pure but for
the clock's seconds."""

from __future__ import annotations

from typing import Final

from consumer.clock import Clock

FEW: Final = 5
AT_WORK_MAX: Final = 32


class SendRate:
    """A few events at a time: what comes in meanwhile waits for those few, on a busy machine as on a quiet one. Effects
    that take long are waited for together, up to half of what one process has at work. And a rate is never exceeded."""

    def __init__(self, clock: Clock, *, rate_per_s: float) -> None:
        self._clock = clock
        self._rate_per_s = rate_per_s
        self._began = clock.monotonic()
        self._count = 0

    def room(self, at_work: int) -> int:
        """How many may be sent, now that nothing waits and so many runs are at work; 0 when it is too early."""
        allowed = int(self._rate_per_s * (self._clock.monotonic() - self._began)) + 1 - self._count
        return max(0, min(FEW, AT_WORK_MAX - at_work, allowed))

    def sent(self, count: int) -> None:
        """So many were sent."""
        self._count += count

    def left_s(self, pending: int) -> float | None:
        """Seconds for what is left, at the rate so far."""
        elapsed_s = self._clock.monotonic() - self._began
        return pending * elapsed_s / self._count if self._count and elapsed_s > 1 else None
