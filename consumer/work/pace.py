"""Pace: how soon to look again at what nobody in this process tells of. What is told wakes at once."""

from __future__ import annotations

from consumer.clock import Clock

SHARE = 0.05


class Pace:
    """`first_s` while things happen, and up to `most_s` after a quiet time: a twentieth of it."""

    def __init__(self, clock: Clock, *, first_s: float, most_s: float) -> None:
        self._clock = clock
        self._first_s = first_s
        self._most_s = most_s
        self._stirred_s = clock.monotonic()

    def stir(self) -> None:
        """Something happened."""
        self._stirred_s = self._clock.monotonic()

    @property
    def wait_s(self) -> float:
        """Seconds until the next look."""
        return min(self._most_s, max(self._first_s, (self._clock.monotonic() - self._stirred_s) * SHARE))
