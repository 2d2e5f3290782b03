"""Warm: a process that has collected the fast tests, and tries each mutant in a child of its own. What a new run of
pytest pays, seconds of importing and collecting, is paid once; a child pays for its tests.

It forks before any of its tests has run but one, which makes the empty ledger that most tests copy: no loop is open
then, and no thread runs."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.mutants.plan import EVERYWHERE, FAST, Places
from tests.mutants.swap import Functions, functions_by_file, swap
from tests.mutants.testing import become_quiet, ended

OPTIONS = (
    "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:schemathesis",
    "-o", "tmp_path_retention_policy=none", *FAST,
)  # fmt: skip
LEDGER = "sqlite_template"
PASSED, FAILED, OTHER_SHAPE, BROKEN = range(4)
UNFINISHED = "its tests did not finish"
Tests = Sequence[tuple[str, float]]
Change = tuple[str, str, str]
"""The path of a module, its text, and what that becomes."""


class CannotSwap(Exception):
    """The mutant's code cannot take the place of what is loaded: it has to be imported."""


class NotCollected(Exception):
    """Tests that could not be collected would judge nothing, and nobody would know."""


class Warm:
    """The process, seen from outside."""

    def __init__(self, tree: Path, places: Places = EVERYWHERE) -> None:
        """Starts it; returns when it has collected the tests in these places of `tree`. Raises NotCollected."""
        self._ours, theirs = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._ours.close()
            _collect(tree, places, theirs)
        theirs.close()
        try:
            tests, missing = self._ours.recv()
        except EOFError:
            tests, missing = [], ["anything: pytest ended before its tests"]
        if missing:
            os.waitpid(self._pid, 0)
            raise NotCollected(f"pytest cannot collect {', '.join(missing)}")
        self.tests: frozenset[str] = frozenset(tests)

    def failing(self, change: Change | None, tests: Tests) -> str | None:
        """The first of these tests to fail after this change, or `UNFINISHED`; None: all pass. Raises CannotSwap."""
        self._ours.send((change, tests))
        found: str | None = self._ours.recv()
        if found == CannotSwap.__name__:
            raise CannotSwap
        return found

    def stop(self) -> None:
        """End the process, and the child that it waits for."""
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)


def _collect(tree: Path, places: Places, asked: Connection) -> None:
    """In the process: never returns."""
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds: a child under way is ended
        become_quiet(tree)
        pytest.main(
            [*OPTIONS, *places, "--rootdir", str(tree), "--basetemp", f"{tree}-temporary"], plugins=[Judge(asked)]
        )
    finally:
        os._exit(0)


class Judge:
    """A plugin of pytest: in the place of running every test, those are run that are asked for."""

    def __init__(self, asked: Connection) -> None:
        self._asked = asked
        self._failed: str | None = None
        self._missing: list[str] = []
        self._items: dict[str, pytest.Item] = {}
        self._functions: Functions = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember what could not be collected."""
        if report.failed:
            self._missing.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what failed."""
        if report.failed:
            self._failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer until nobody asks; only say what is missing where anything is."""
        if self._missing:
            self._asked.send(([], self._missing))
            return True
        first = next((one for one in session.items if LEDGER in getattr(one, "fixturenames", ())), None)
        if first is not None:
            session.config.hook.pytest_runtest_protocol(item=first, nextitem=_other(first))
        self._items, self._functions = {one.nodeid: one for one in session.items}, functions_by_file()
        gc.collect()
        gc.freeze()  # a child that collects would copy every page
        self._asked.send((list(self._items), []))
        while True:
            self._asked.send(self._answer(*self._asked.recv()))

    def _answer(self, change: Change | None, tests: Tests) -> str | None:
        told, tell = Pipe(duplex=False)
        if (child := os.fork()) == 0:
            self._try(change, tests, tell)
        tell.close()
        code = ended(child, 30 + 3 * sum(seconds for _, seconds in tests))
        with told:
            if code == OTHER_SHAPE:
                return CannotSwap.__name__
            return None if code == PASSED else str(told.recv()) if code == FAILED else UNFINISHED

    def _try(self, change: Change | None, tests: Tests, tell: Connection) -> None:
        """In a child: never returns."""
        code = BROKEN
        try:
            os.setsid()
            if change and not swap(self._functions[change[0]], *change):
                os._exit(OTHER_SHAPE)
            if failing := self._first_failing([(self._items[one], seconds) for one, seconds in tests]):
                tell.send(failing)
            code = FAILED if failing else PASSED
        finally:
            os._exit(code)

    def _first_failing(self, tests: list[tuple[pytest.Item, float]]) -> str | None:
        self._failed = None
        tests[0][0].session._setupstate.teardown_exact(tests[0][0])
        for number, (item, seconds) in enumerate(tests):
            following = tests[number + 1][0] if number + 1 < len(tests) else _other(item)
            item.add_marker(pytest.mark.timeout(5 + 10 * seconds), append=False)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return item.nodeid
        return None


def _other(item: pytest.Item) -> pytest.Item | None:
    """A test of another file, if there is one: after this one its file is left, and what belongs to all tests stays."""
    return next((one for one in item.session.items if one.path != item.path), None)
