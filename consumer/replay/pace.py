"""Pace: how many events of a replay are sent at once, so that live work hardly notices (case R8). Pure but for the
clock's seconds."""

from __future__ import annotations

from consumer.clock import Clock

FEW, MOST = 5, 400
PROBE_EVERY = 10
PATIENCE = 2.0
LEAST_S = 0.1


class Pace:
    """A few events tell how long one takes just now; then so many are sent at once as are done in twice that. What
    comes in meanwhile waits hardly longer than it would by itself, on a busy machine as on a quiet one. And a rate is
    never exceeded."""

    def __init__(self, clock: Clock, *, rate_per_s: float) -> None:
        self._clock = clock
        self._rate_per_s = rate_per_s
        self._window = FEW
        self._allowed_s = PATIENCE * LEAST_S
        self._rounds = 0
        self._began = clock.monotonic()
        self._count = 0
        self._sent_at: float | None = None

    def room(self) -> int:
        """How many may be sent now that all before is done; 0 or less when it is too early."""
        now = self._clock.monotonic()
        if self._sent_at is not None:
            self._learn(now - self._sent_at)
            self._sent_at = None
        allowed = int(self._rate_per_s * (now - self._began)) + 1 - self._count
        return min(FEW if self._is_probe() else self._window, allowed)

    def sent(self, count: int) -> None:
        """So many were sent."""
        self._count += count
        self._sent_at = self._clock.monotonic()

    def left_s(self, pending: int) -> float | None:
        """Seconds for what is left, at the pace so far."""
        elapsed_s = self._clock.monotonic() - self._began
        return pending * elapsed_s / self._count if self._count and elapsed_s > 1 else None

    def _is_probe(self) -> bool:
        return self._rounds % PROBE_EVERY == 0

    def _learn(self, took_s: float) -> None:
        if self._is_probe():
            self._allowed_s = PATIENCE * max(took_s, LEAST_S)
        elif took_s > self._allowed_s:
            self._window = max(FEW, self._window // 2)
        else:
            self._window = min(MOST, self._window * 3 // 2)
        self._rounds += 1
