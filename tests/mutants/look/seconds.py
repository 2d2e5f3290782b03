"""Seconds: how long each test takes, kept beside the lines that it runs (a plugin of pytest, see `lines`)."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

FILE = "MUTANTS_SECONDS"
_seconds: Counter[str] = Counter()
_failed: set[str] = set()
_missing: list[str] = []


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Remember what could not be collected."""
    if report.failed:
        _missing.append(report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Also of the tests that another process of xdist runs."""
    _seconds[report.nodeid] += report.duration  # type: ignore[assignment]  # a Counter of floats adds as well
    if report.failed or report.skipped:
        _failed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In the process that was started: those of xdist write nothing. Nothing is written either when a file could not be
    collected: a look without it is none."""
    if not hasattr(session.config, "workerinput") and not _missing:
        passed = {test: round(took, 3) for test, took in _seconds.items() if test not in _failed}
        Path(os.environ[FILE]).write_text(json.dumps(passed))
