"""Metrics: what the stages count and gauge, for the metrics endpoint and `status` to read whenever they like."""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[str, str, float | None, float | None], None]
"""(name, application, what was added or None for a gauge, the value now or None for a gauge that is gone)."""


def _nobody(name: str, application: str, by: float | None, value: float | None) -> None:
    """Before somebody listens."""


class StageMetrics:
    """The numbers of one process's stages. Kept here, so that a stage knows nothing of how they are shown."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], float] = {}
        self._gauges: dict[tuple[str, str], float] = {}
        self._tell: Listener = _nobody

    def listen(self, listener: Listener) -> None:
        """Tell of what was counted and gauged until now, and of each change from now on."""
        self._tell = listener
        for key, value in self._counters.items():
            listener(*key, value, value)
        for key, value in self._gauges.items():
            listener(*key, None, value)

    def count(self, name: str, application: str, by: float = 1) -> None:
        """Add to a counter."""
        value = self._counters.get((name, application), 0) + by
        self._counters[name, application] = value
        self._tell(name, application, by, value)

    def gauge(self, name: str, application: str, value: float) -> None:
        """Set a gauge."""
        self._gauges[name, application] = value
        self._tell(name, application, None, value)

    def forget(self, name: str, application: str) -> None:
        """A gauge that nobody here knows any more: it is not shown."""
        self._gauges.pop((name, application), None)
        self._tell(name, application, None, None)

    def value(self, name: str, application: str) -> float:
        """One number; 0 when nothing was counted yet."""
        key = (name, application)
        return self._counters.get(key, self._gauges.get(key, 0))
