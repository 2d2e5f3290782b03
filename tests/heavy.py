"""The heavy tests: those that take long enough to be left out of `make check`, though they need no server. `heavy.txt`
names them, a function a line; `python -m tests.heavy` measures all that need no server, and writes it anew.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
NAMES = TESTS / "heavy.txt"
HEAVY_S = 0.4
"""What all cases of a function take together, one test after the other."""
ALL = ("-q", "-p", "no:xdist", "-m", "not (slow or kafka or postgres or browser)")


class Stopwatch:
    """A plugin of pytest: the seconds that each test function took, its fixtures included."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A part of a test is over."""
        self.seconds[function(report.nodeid)] += report.duration


@cache
def names() -> frozenset[str]:
    """The functions that `heavy.txt` names."""
    return frozenset(NAMES.read_text().split())


def function(nodeid: str) -> str:
    """Its file and function, without the case. Pure."""
    return nodeid.partition("[")[0]


def heavy(seconds: Mapping[str, float]) -> list[str]:
    """Which of these are heavy, in order. Pure."""
    return sorted(one for one, took_s in seconds.items() if took_s >= HEAVY_S and one.startswith("tests/"))


def main() -> int:
    """Measure, and write `heavy.txt`. Exit 1 where a test fails: what it took says nothing."""
    os.chdir(TESTS.parent)
    stopwatch = Stopwatch()
    if failed := pytest.main([*ALL], plugins=[stopwatch]):
        return int(failed)
    NAMES.write_text("".join(f"{one}\n" for one in heavy(stopwatch.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
