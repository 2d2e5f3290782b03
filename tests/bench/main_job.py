"""The main job, against a consumer that does the same with a commit per message: a registered order is paid, becomes
PAID, `fulfilment.requested` goes out and comes back, the merchant's effect is called and its success is stored.

Beside it, in the same rounds: the insert of all rows that it leaves, which is the limit; and the same orders when
nobody registered them, so that `auto` asks and a read answers (three events of each instead of two).

What counts is the CPU time of the worker's own process, which hardly depends on what else the machine does. The log is
embedded, the effect does nothing. With `--profile` the worker's functions are listed by what they cost.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop

from consumer.events import Event
from consumer.plugin import Context, handles
from consumer.work.registry import load_registry
from tests.bench.job import limit, naive
from tests.bench.job.prepared import DATABASES, Job, url_of, worked_off
from tests.bench.ratio import Cost, Measured, Ratio, one_core, table
from tests.support.postgres import postgres_server

SHIP = "bench:ship_paid"
ROUNDS = 3
BAR, AUTO_BAR = 2.5, 0.7


@dataclass(frozen=True)
class Size:
    """How many orders each handles, how often."""

    ours: int = 3_000
    auto: int = 2_000
    baseline: int = 1_000
    rounds: int = ROUNDS


@dataclass(frozen=True)
class Round:
    """What each took."""

    ours: Cost
    auto: Cost
    baseline: Cost
    limit: Cost


@handles("fulfilment.requested", name=SHIP, concurrency=64)
async def ship(event: Event, ctx: Context) -> None:
    """Nothing."""


def measure(folder: Path, postgres: str, size: Size | None = None) -> list[Measured]:
    """Alternate between them, each on a ledger and a log of its own; orders for a second of CPU."""
    one_core(0)
    found: list[Measured] = []
    for name in DATABASES:
        rounds = [_round(folder, name, postgres, size or Size()) for _ in range((size or Size()).rounds + 1)][1:]
        _tell(name, rounds)  # without the first, which warms up
        found += _ratios(name, rounds)
    return found


def _round(folder: Path, name: str, postgres: str, size: Size) -> Round:
    url = url_of(name, folder, postgres)
    ours = uvloop.run(worked_off(folder, url, job_of(size.ours)))
    rows = uvloop.run(limit.rows_of(url, size.ours))
    return Round(
        ours=ours,
        limit=uvloop.run(limit.inserted(folder, url_of(name, folder, postgres), size.ours, rows)),
        auto=uvloop.run(worked_off(folder, url_of(name, folder, postgres), _auto(size.auto))),
        baseline=uvloop.run(naive.main_job(folder, url_of(name, folder, postgres), size.baseline)),
    )


def job_of(orders: int) -> Job:
    """So many orders that are registered."""
    return Job(registry=load_registry(extra={"bench": sys.modules[__name__]}), orders=orders)


def _auto(orders: int) -> Job:
    registry = load_registry(extra={"bench": sys.modules[__name__]})
    return Job(registry=registry, orders=orders, events_each=3, registered=False, read=True)


def _ratios(name: str, rounds: Sequence[Round]) -> list[Measured]:
    def against(baseline: Sequence[Cost], ours: Sequence[Cost]) -> list[tuple[float, float]]:
        return [(one.per_cpu_second, base.per_cpu_second) for one, base in zip(ours, baseline, strict=True)]

    ours, auto = [one.ours for one in rounds], [one.auto for one in rounds]
    naive_ones, limits = [one.baseline for one in rounds], [one.limit for one in rounds]
    what = f"main job: {name}, orders for a second of CPU"
    return [
        Ratio(what, "a consumer that commits per message", against(naive_ones, ours), BAR),
        Ratio(f"main job: {name}, our share of the limit", "the insert of all its rows", against(limits, ours), 0),
        Ratio(f"main job: {name}, not registered, asked", "the main job", against(ours, auto), AUTO_BAR),
    ]


def _tell(name: str, rounds: Sequence[Round]) -> None:
    sides = {"insert of all its rows": [one.limit for one in rounds], "main job": [one.ours for one in rounds],
             "not registered, asked": [one.auto for one in rounds],
             "a commit per message": [one.baseline for one in rounds]}  # fmt: skip
    for who, costs in sides.items():
        cpu, rate = median(one.cpu_ms_per_1000 for one in costs), median(one.rate for one in costs)
        sys.stdout.write(f"{name:<11} {who:<22} {cpu:>8.0f} ms of CPU per 1,000 {rate:>8.0f}/s\n")
    sys.stdout.flush()


def _profiled(folder: Path, postgres: str, database: str, job: Job, lines: int) -> None:
    for profile in (None, cProfile.Profile()):  # the first run warms up
        cost = uvloop.run(worked_off(folder, url_of(database, folder, postgres), job, profile))
    assert profile is not None
    sys.stdout.write(f"{database}: {cost.cpu_ms_per_1000:.0f} ms of CPU per 1,000 under the profiler\n")
    shown = pstats.Stats(profile, stream=sys.stdout)
    for order in ("tottime", "cumulative"):
        shown.sort_stats(order).print_stats(lines)


def main() -> None:
    """By hand: `python -m tests.bench.main_job [--profile SQLite [--auto]]`."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.main_job", description=__doc__)
    parser.add_argument("--profile", choices=DATABASES)
    parser.add_argument("--auto", action="store_true", help="profile orders that nobody registered")
    parser.add_argument("--orders", type=int, default=Size.ours)
    parser.add_argument("--baseline", type=int, default=Size.baseline, help="orders of the baseline")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--lines", type=int, default=45)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench") as folder, postgres_server() as postgres:
        if asked.profile:
            job = _auto(asked.orders) if asked.auto else job_of(asked.orders)
            _profiled(Path(folder), postgres, asked.profile, job, asked.lines)
        else:
            size = Size(asked.orders, asked.orders, asked.baseline, asked.rounds)
            sys.stdout.write(table(measure(Path(folder), postgres, size)))


if __name__ == "__main__":
    main()
