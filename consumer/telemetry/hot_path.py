"""Hot path: a counter and a histogram for the busiest path, a counter whose number is kept elsewhere, and a gauge of
what not every process measures. Plain numbers, turned into samples when somebody scrapes.

prometheus_client takes a lock for each of several numbers on every observation; a request would spend more on being
counted than on being checked. Only the event loop's thread may count here; a scrape may come from anywhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class PlainCounter(Collector):
    """Counts by label values; `inc` takes them in the order of `labels`."""

    def __init__(self, name: str, meaning: str, labels: tuple[str, ...], registry: CollectorRegistry) -> None:
        self.name = name
        self.meaning = meaning
        self.label_names = labels
        self._counts: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def inc(self, values: tuple[str, ...] = (), amount: float = 1) -> None:
        """Count `amount` under these label values."""
        self._counts[values] = self._counts.get(values, 0) + amount

    def total(self, having: frozenset[str] | None = None) -> int:
        """The sum of all counts; with `having`, of those that have one of these among their label values."""
        counted = list(self._counts.items())
        return int(sum(count for values, count in counted if having is None or not having.isdisjoint(values)))

    def each(self, last: Collection[str]) -> dict[str, int]:
        """The counts that have one of these as their last label value, summed by their first."""
        found = Counter[str]()
        for values, count in list(self._counts.items()):
            if values[-1] in last:
                found[values[0]] += int(count)
        return dict(found)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The samples of now."""
        family = CounterMetricFamily(self.name, self.meaning, labels=self.label_names)
        for values, count in list(self._counts.items()):
            family.add_metric(values, count)
        yield family


class CountedElsewhere(Collector):
    """A counter without labels, whose number somebody else keeps."""

    def __init__(self, name: str, meaning: str, count: Callable[[], float], registry: CollectorRegistry) -> None:
        self.name = name
        self.meaning = meaning
        self.label_names: tuple[str, ...] = ()
        self._count = count
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The sample of now."""
        yield CounterMetricFamily(self.name, self.meaning, value=self._count())


class PlainGauge(Collector):
    """A gauge without labels, which has no sample until somebody measured it: 0 would be a lie."""

    def __init__(self, name: str, meaning: str, registry: CollectorRegistry) -> None:
        self.name = name
        self.meaning = meaning
        self.label_names: tuple[str, ...] = ()
        self._value: float | None = None
        registry.register(self)

    def set(self, value: float) -> None:
        """This is what was measured."""
        self._value = value

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The sample of now, if there is one."""
        yield GaugeMetricFamily(self.name, self.meaning, value=self._value)


class PlainHistogram(Collector):
    """A histogram by label values; `observe` takes them in the order of `labels`. Without labels it has its samples
    from the start."""

    def __init__(
        self,
        name: str,
        meaning: str,
        bounds: tuple[float, ...],
        registry: CollectorRegistry,
        labels: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.meaning = meaning
        self.label_names = labels
        self._bounds = bounds
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        if not labels:
            self._begin(())
        registry.register(self)

    def observe(self, value: float, values: tuple[str, ...] = ()) -> None:
        """Count one value under these label values."""
        if values not in self._sums:
            self._begin(values)
        self._counts[values][bisect_left(self._bounds, value)] += 1
        self._sums[values] += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The samples of now."""
        family = HistogramMetricFamily(self.name, self.meaning, labels=self.label_names)
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for values, total in list(self._sums.items()):
            buckets = list(zip(bounds, accumulate(self._counts[values]), strict=True))
            family.add_metric(values, buckets, sum_value=total)
        yield family

    def _begin(self, values: tuple[str, ...]) -> None:
        self._counts[values] = [0] * (len(self._bounds) + 1)
        self._sums[values] = 0.0
