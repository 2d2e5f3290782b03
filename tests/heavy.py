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


FIRST = frozenset({
    "tests/cli/developing/test_a_save_is_live_at_once.py",
    "tests/cli/walking/test_the_commands_walk_the_simulator.py",
    "tests/contract/broker/kafka/test_kafkas_faults_are_told_in_time.py",
    "tests/contract/ledger/engine/test_no_statement_reads_what_grows.py",
    "tests/crash/test_a_handler_that_ends_its_process_is_found_out.py",
    "tests/crash/test_killed_at_any_step_of_the_work.py",
    "tests/deploy/test_image.py",
    "tests/drills/test_an_alert_fires_by_its_fault.py",
    "tests/faults/alone/test_status_names_what_kafka_refuses.py",
    "tests/faults/alone/test_status_names_what_postgresql_refuses.py",
    "tests/faults/test_no_fault_stays_green.py",
    "tests/hostile/test_a_corpus_of_odd_records.py",
    "tests/hostile/test_any_text_in_any_field_ends_in_the_same_state.py",
    "tests/plugin/test_a_package_with_tables_runs.py",
    "tests/promises/test_a_deploy_during_traffic_refuses_nothing.py",
    "tests/promises/test_a_ledger_that_moves_loses_no_order.py",
    "tests/promises/test_every_outage_heals_by_itself.py",
    "tests/promises/test_whatever_the_service_does_not_document_ends_in_its_own_state.py",
    "tests/replay/test_a_killed_apply_goes_on_where_it_was.py",
    "tests/simulation/test_any_timing_and_any_death_end_in_the_services_own_state.py",
    "tests/work/execution/test_a_blocking_transaction_is_cut_off.py",
})  # fmt: skip
"""Files that take most of a minute, and more: they are played first, so that none is left to one worker at the end."""


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
