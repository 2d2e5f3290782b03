"""Metrics: what the stages count and gauge, for the metrics endpoint and `status` to read whenever they like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Listener = Callable[[str, str, float | None, float | None], None]
"""(name, application, what was added or None for a gauge, the value now or None for a gauge that is gone)."""


@dataclass(frozen=True)
class StageMetric:
    """One number. `kind` is `counter` (only goes up in one process) or `gauge`; never a payload or an id in it."""

    name: str
    kind: str
    application: str
    value: float


class StageMetrics:
    """The numbers of one process's stages. Kept here, so that a stage knows nothing of how they are shown."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], float] = {}
        self._gauges: dict[tuple[str, str], float] = {}
        self.listener: Listener | None = None

    def count(self, name: str, application: str, by: float = 1) -> None:
        """Add to a counter."""
        value = self._counters.get((name, application), 0) + by
        self._counters[name, application] = value
        if self.listener is not None:
            self.listener(name, application, by, value)

    def gauge(self, name: str, application: str, value: float) -> None:
        """Set a gauge."""
        self._gauges[name, application] = value
        if self.listener is not None:
            self.listener(name, application, None, value)

    def forget(self, name: str, application: str) -> None:
        """A gauge that nobody here knows any more: it is not shown."""
        self._gauges.pop((name, application), None)
        if self.listener is not None:
            self.listener(name, application, None, None)

    def value(self, name: str, application: str) -> float:
        """One number; 0 when nothing was counted yet."""
        key = (name, application)
        return self._counters.get(key, self._gauges.get(key, 0))

    def __iter__(self) -> Iterator[StageMetric]:
        for (name, application), value in sorted(self._counters.items()):
            yield StageMetric(name, "counter", application, value)
        for (name, application), value in sorted(self._gauges.items()):
            yield StageMetric(name, "gauge", application, value)
