"""Quota: how many reads a stage may spend on what may be forged, or asked for without end (cases I15, B23)."""

from __future__ import annotations

from consumer.clock import Clock


class TokenBucket:
    """`per_s` reads a second on average, up to `burst` at once. Nobody waits here: what is not granted comes later."""

    def __init__(self, clock: Clock, *, per_s: float, burst: int) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = burst
        self._left = float(burst)
        self._at = clock.monotonic()

    def grant(self, wanted: int) -> int:
        """Take as many of the wanted reads as there are, and return how many."""
        self._refill()
        granted = min(wanted, int(self._left))
        self._left -= granted
        return granted

    def covers(self, wanted: int) -> bool:
        """Whether that many reads are there now."""
        self._refill()
        return wanted <= self._left

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._left = min(float(self._burst), self._left + (now - self._at) * self._per_s)
        self._at = now
