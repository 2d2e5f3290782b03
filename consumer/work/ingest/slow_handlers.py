"""Slow handlers: a transactional handler that was cut off in a shared transaction goes its own way for a while.

A batch shares one transaction, and everybody waits for its slowest handler. So there a handler gets little time; one
that needs more is left to the dispatcher, in a transaction of its own with its whole `timeout_s`, where only its own
keys wait for it (case H4).
"""

from __future__ import annotations

from consumer.clock import Clock

SHARED_LIMIT_S = 5.0
APART_S = 60.0


class SlowHandlers:
    """Which handlers go their own way now, by the clock's monotonic time."""

    def __init__(self, clock: Clock) -> None:
        self.limit_s = SHARED_LIMIT_S
        self._clock = clock
        self._until: dict[str, float] = {}

    def has(self, handler: str) -> bool:
        """Whether the handler's runs are left to the dispatcher now."""
        if not self._until:
            return False
        until = self._until.get(handler)
        if until is not None and until <= self._clock.monotonic():
            del self._until[handler]
            return False
        return until is not None

    def add(self, handler: str) -> None:
        """It was cut off: for a while it does not share."""
        self._until[handler] = self._clock.monotonic() + APART_S
