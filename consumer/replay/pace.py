"""Pace: how many events of a replay may be on their way, so that live work hardly notices (case R8). Pure but for the
clock's seconds."""

from __future__ import annotations

from consumer.clock import Clock

FIRST, LEAST, MOST = 50, 5, 400
QUICK_S, SLOW_S = 1.0, 2.0


class Pace:
    """A window that grows while what was sent is taken quickly, halves while it is not; and a rate that is never
    exceeded."""

    def __init__(self, clock: Clock, *, rate_per_s: float) -> None:
        self._clock = clock
        self._rate_per_s = rate_per_s
        self._window = FIRST
        self._began = clock.monotonic()
        self._count = 0
        self._probe: tuple[int, float] | None = None

    def room(self, on_way: int, taken_upto: int) -> int:
        """How many more may be sent now, when `on_way` are not done yet. `taken_upto`: the place of the last sent."""
        self._learn(on_way, taken_upto)
        elapsed_s = self._clock.monotonic() - self._began
        allowed = int(self._rate_per_s * elapsed_s) + 1 - self._count
        return min(self._window - on_way, allowed)

    def _learn(self, on_way: int, taken_upto: int) -> None:
        if self._probe is None or self._probe[0] != taken_upto:
            return
        age_s = self._clock.monotonic() - self._probe[1]
        if on_way == 0 and age_s <= QUICK_S:
            self._window, self._probe = min(MOST, self._window * 2), None
        elif age_s > SLOW_S:
            self._window, self._probe = max(LEAST, self._window // 2), (taken_upto, self._clock.monotonic())

    def sent(self, count: int, place: int) -> None:
        """So many were sent, up to this place."""
        self._count += count
        self._probe = (place, self._clock.monotonic())

    def left_s(self, pending: int) -> float | None:
        """Seconds for what is left, at the pace so far."""
        elapsed_s = self._clock.monotonic() - self._began
        return pending * elapsed_s / self._count if self._count and elapsed_s > 1 else None
