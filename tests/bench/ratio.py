"""Ratio: a speed against a baseline of the same run, and the bar it must reach."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Ratio:
    """Rates per second of (ours, baseline), round by round."""

    what: str
    baseline: str
    rounds: Sequence[tuple[float, float]]
    bar: float

    @property
    def value(self) -> float:
        """The median of the rounds' ratios."""
        return median(ours / baseline for ours, baseline in self.rounds)

    @property
    def good(self) -> bool:
        """Whether the bar is reached."""
        return self.value >= self.bar


def table(ratios: Sequence[Ratio]) -> str:
    """The ratios as text."""
    lines = [f"{'measured':<60} {'rate/s':>8} {'baseline/s':>10} {'ratio':>6} {'bar':>5}"]
    for one in ratios:
        ours, baseline = median(o for o, _ in one.rounds), median(b for _, b in one.rounds)
        mark = "" if one.good else "  BELOW"
        lines.append(f"{one.what:<60} {ours:>8.1f} {baseline:>10.1f} {one.value:>6.2f} {one.bar:>5.2f}{mark}")
        lines.append(f"  against {one.baseline}")
    return "\n".join(lines) + "\n"


def one_core(number: int) -> None:
    """Keep this process to one core, so that the servers beside it have the other; nothing on a one-core machine."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[number % len(cores)]})
