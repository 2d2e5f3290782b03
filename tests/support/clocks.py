"""Clocks that are wrong."""

from __future__ import annotations

from datetime import datetime, timedelta

from consumer.clock import SystemClock


class WrongClock(SystemClock):
    """The machine's clock, set wrong."""

    def __init__(self, ahead: timedelta) -> None:
        self._ahead = ahead

    def now(self) -> datetime:
        """See Clock."""
        return super().now() + self._ahead
