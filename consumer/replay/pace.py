"""Pace: how many events of a replay are sent at once, so that live work hardly notices (case R8). Pure but for the
clock's seconds."""

from __future__ import annotations

from consumer.clock import Clock

FIRST, LEAST, MOST = 50, 5, 400
QUICK_S, SLOW_S = 0.4, 1.2


class Pace:
    """A window that grows while what was sent is done quickly, halves when it was not; and a rate that is never
    exceeded."""

    def __init__(self, clock: Clock, *, rate_per_s: float) -> None:
        self._clock = clock
        self._rate_per_s = rate_per_s
        self._window = FIRST
        self._began = clock.monotonic()
        self._count = 0
        self._sent_at: float | None = None

    def room(self) -> int:
        """How many may be sent now that all before is done; 0 or less when it is too early."""
        now = self._clock.monotonic()
        if self._sent_at is not None:
            took_s, self._sent_at = now - self._sent_at, None
            if took_s <= QUICK_S:
                self._window = min(MOST, self._window * 2)
            elif took_s > SLOW_S:
                self._window = max(LEAST, self._window // 2)
        allowed = int(self._rate_per_s * (now - self._began)) + 1 - self._count
        return min(self._window, allowed)

    def sent(self, count: int) -> None:
        """So many were sent."""
        self._count += count
        self._sent_at = self._clock.monotonic()

    def left_s(self, pending: int) -> float | None:
        """Seconds for what is left, at the pace so far."""
        elapsed_s = self._clock.monotonic() - self._began
        return pending * elapsed_s / self._count if self._count and elapsed_s > 1 else None
