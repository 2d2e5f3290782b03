"""What is measured: a speed against a baseline of the same run, or a figure that must stay under a bound."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_CPUCLOCK_SCHED = 2


@dataclass(frozen=True)
class Cost:
    """What a number of orders took: CPU seconds of the process (and of its server, where that counts), and seconds by
    the clock."""

    orders: int
    cpu_s: float
    wall_s: float
    server_s: float = 0.0

    @property
    def cpu_ms_per_1000(self) -> float:
        """CPU milliseconds for a thousand orders."""
        return (self.cpu_s + self.server_s) / self.orders * 1e6

    @property
    def per_cpu_second(self) -> float:
        """Orders for a second of CPU."""
        return self.orders / (self.cpu_s + self.server_s)

    @property
    def rate(self) -> float:
        """Orders a second."""
        return self.orders / self.wall_s


@dataclass(frozen=True)
class Ratio:
    """Rates per second of (ours, baseline), round by round. A bar of 0: it is shown, and nothing is asked of it."""

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

    @property
    def share(self) -> float:
        """How far it is: 1 at the bar, more is better."""
        return self.value / (self.bar or 1.0)

    def lines(self) -> list[str]:
        """It as text."""
        ours, baseline = median(o for o, _ in self.rounds), median(b for _, b in self.rounds)
        mark = "" if self.good else "  BELOW"
        bar = f"{self.bar:>5.2f}" if self.bar else "     "
        shown = f"{self.what:<60} {ours:>8.1f} {baseline:>10.1f} {self.value:>6.2f} {bar}{mark}"
        return [shown.rstrip(), f"  against {self.baseline}"]


@dataclass(frozen=True)
class Bound:
    """A figure and what it may be at most, in one unit."""

    what: str
    value: float
    most: float
    unit: str

    @property
    def good(self) -> bool:
        """Whether it stays within."""
        return self.value <= self.most

    @property
    def share(self) -> float:
        """How far it is: 1 at the bound, more is better."""
        return self.most / self.value if self.value else 2.0

    def lines(self) -> list[str]:
        """It as text."""
        mark = "" if self.good else "  ABOVE"
        return [f"{self.what:<60} {self.value:>8.2f} {self.unit:<10} {'at most':>6} {self.most:g}{mark}"]


Measured = Ratio | Bound


def table(measured: Sequence[Measured]) -> str:
    """All of it as text."""
    lines = [f"{'measured':<60} {'rate/s':>8} {'baseline/s':>10} {'ratio':>6} {'bar':>5}"]
    for one in measured:
        lines += one.lines()
    return "\n".join(lines) + "\n"


def one_core(number: int) -> None:
    """Keep this process to one core, so that the servers beside it have the other; nothing on a one-core machine."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def processor_s(pid: int) -> float:
    """Seconds of processor time a process has taken, its threads and the kernel's work for it included: to the
    nanosecond, where `/proc` tells hundredths. It is the clock that glibc's `clock_getcpuclockid` names."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def with_children_s(pid: int) -> float:
    """The same of a process and its children, those that ended and those that live."""
    ticks = sum(map(int, _stat(pid)[11:15]))
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ends while we look
            if int((child := _stat(int(place.name)))[1]) == pid:
                ticks += sum(map(int, child[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """What the kernel says of it, from its state on (which `proc(5)` calls the third field)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
