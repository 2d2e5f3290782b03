"""Plan: which modules are mutated, and which tests have to notice. The first to match counts; the nearest tests stand
first, for a mutant is over with the first test that fails."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAST = (
    "-m", "not (slow or kafka or postgres or browser)", "--ignore", "tests/deploy", "--ignore", "tests/mutants",
)  # fmt: skip
"""How pytest is told which tests judge, beside their places."""
Places = tuple[str, ...]
EVERYWHERE: Places = ("tests", "handlers")
PLAYED = (
    "consumer/work",
    "consumer/sync",
    "consumer/checks",
    "consumer/lists",
    "consumer/runtime",
    "consumer/ledger",
    "handlers",
)
"""The folders that are played."""
LEFT_OUT = ("__init__.py", "*/migrations/*", "*/tests/*", "handlers/template/*", "*/metrics.py")
HANDLING = "tests/contract/ledger/handling"
READING = "tests/contract/ledger/reading"
REFRESH = "tests/sync/refresh"
TESTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("consumer/work/transition.py", ("tests/work/test_what_becomes_of_a_run.py",)),
    ("consumer/work/pausing/rules.py", ("tests/work/pausing",)),
    ("consumer/work/pausing/*", ("tests/work/pausing", "tests/work/execution")),
    ("consumer/sync/refresh/schedule.py", (f"{REFRESH}/test_whose_read_comes_next.py", REFRESH)),
    ("consumer/lists/bookmark.py", ("tests/lists/test_what_a_bookmark_concludes.py",)),
    ("handlers/access/rules.py", ("tests/access/test_rules.py", "tests/hostile/test_access_is_not_taken_in_a_race.py")),
    ("handlers/fulfilment/rules.py", ("tests/fulfilment/test_rules.py",)),
    ("consumer/work/outbound/*", ("tests/work/outbound",)),
    ("consumer/work/dispatch/dispatcher.py", ("tests/work", HANDLING)),
    ("consumer/work/dispatch/*", ("tests/work/dispatch", "tests/work/pausing", HANDLING)),
    ("consumer/work/ingest/*", ("tests/work/ingest", "tests/work/dispatch", HANDLING)),
    ("consumer/work/execution/*", ("tests/work/execution", "tests/work/dispatch")),
    ("consumer/work/rounds/*", ("tests/work/rounds", "tests/work")),
    ("consumer/work/*", ("tests/work",)),
    ("consumer/sync/backfill/*", ("tests/sync/backfill", "tests/sync")),
    ("consumer/sync/confirm/*", ("tests/sync/confirm", "tests/sync")),
    ("consumer/sync/refresh/*", ("tests/sync/refresh", "tests/sync")),
    ("consumer/sync/reconcile/*", ("tests/sync/reconcile", "tests/sync")),
    ("consumer/sync/canary/*", ("tests/sync/canary", "tests/sync")),
    ("consumer/sync/*", ("tests/sync",)),
    ("consumer/checks/*", ("tests/checks",)),
    ("consumer/runtime/*", ("tests/runtime", "tests/sync")),
    ("consumer/lists/*", ("tests/lists", "tests/sync/backfill")),
    ("consumer/ledger/handling/runs*.py", (HANDLING, "tests/work/dispatch", "tests/work/ingest")),
    ("consumer/ledger/handling/attempts.py", (HANDLING, "tests/work/dispatch")),
    ("consumer/ledger/handling/queue.py", (HANDLING, "tests/work/dispatch", "tests/work/ingest")),
    ("consumer/ledger/reading/read_requests.py", (f"{READING}/test_reads_coalesce.py", "tests/sync/refresh")),
    ("handlers/access/*", ("tests/access", "tests/hostile/test_access_is_not_taken_in_a_race.py")),
    (
        "handlers/fulfilment/registration.py",
        (
            "tests/shop/test_a_registration_is_added_to_never_changed.py",
            "tests/shop/test_a_consumer_of_before_is_registered_with.py",
            "tests/hostile/test_what_is_paid_is_compared_with_the_newest_registration.py",
            "tests/fulfilment",
        ),
    ),
    (
        "handlers/fulfilment/*",
        ("tests/fulfilment", "tests/hostile/test_what_is_paid_is_compared_with_the_newest_registration.py"),
    ),
    ("handlers/books.py", ("tests/console/invariants",)),
    ("handlers/*", ("tests/access", "tests/fulfilment")),
)
DECISIVE = (
    "consumer/work/transition.py",
    "consumer/work/pausing/rules.py",
    "consumer/sync/refresh/schedule.py",
    "consumer/lists/bookmark.py",
    "consumer/ledger/reading/read_requests.py",
    "handlers/access/rules.py",
    "handlers/access/ending.py",
    "handlers/fulfilment/rules.py",
)
"""What decides about money, access and whether anything is tried again: played first."""


def modules(asked: list[str]) -> list[str]:
    """The modules that these names (files, folders, patterns) mean, as paths below the checkout; all without a name."""
    every = sorted(path.relative_to(ROOT).as_posix() for folder in PLAYED for path in (ROOT / folder).rglob("*.py"))
    every = [one for one in every if tests_of(one) and not any(fnmatch(one, f"*{left}") for left in LEFT_OUT)]
    if not asked:
        return [*DECISIVE, *(one for one in every if one not in DECISIVE)]
    found = [one for one in every if any(fnmatch(one, name) or fnmatch(one, f"{name.rstrip('/')}/*") for name in asked)]
    if not found:
        raise ValueError(f"no module is called {', '.join(asked)}")
    return found


@functools.cache
def tests_of(module: str) -> tuple[str, ...]:
    """The tests that have to notice a mutant of this module."""
    return next((tests for pattern, tests in TESTS if fnmatch(module, pattern)), ())


def places(asked: Iterable[str], modules: Iterable[str], *, near: bool = False) -> Places:
    """Where the tests are that judge: everywhere, or for what was asked for by name the tests mirroring these modules,
    and those that import one, or what they share with others that do (`near`: the mirror alone). A mutant that others
    alone would notice is called a survivor then, never the reverse."""
    mirror = {place for module in modules for place in _narrowest(tests_of(module))}
    if near:
        return _without_inner(mirror)
    if not list(asked):
        return EVERYWHERE
    names = {_dotted(one) for one in modules}
    names |= {_dotted(one) for one, text in _fast_files() if not _is_test(one) and _imports(text, names)}
    importing = {one for one, text in _fast_files() if _is_test(one) and _imports(text, names)}
    return _without_inner(mirror | importing)


def _without_inner(places: set[str]) -> Places:
    return tuple(sorted(one for one in places if not any(is_in(one, other) for other in places)))


def _narrowest(places: Places) -> set[str]:
    """Without the folders that another of these lies in: what they hold beside it tests the whole stage, slowly."""
    return {one for one in places if not any(is_in(other, one) for other in places)}


@functools.cache
def _fast_files() -> list[tuple[str, str]]:
    """The tests, and what they share beside what most of them do: by their paths, with their texts."""
    every = [path for folder in EVERYWHERE for path in (ROOT / folder).rglob("*.py") if path.name != "conftest.py"]
    named = [(path.relative_to(ROOT).as_posix(), path.read_text()) for path in every]
    return [(name, text) for name, text in named if not is_in(name, "tests/deploy", "tests/mutants", "tests/support")]


def _is_test(name: str) -> bool:
    return name.rpartition("/")[2].startswith("test_")


def _imports(text: str, names: set[str]) -> bool:
    return any(line.split()[1] in names for line in text.splitlines() if line.lstrip().startswith(("from ", "import ")))


def _dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def is_in(name: str, *folders: str) -> bool:
    """Whether this file or folder lies in one of these."""
    return any(name.startswith(f"{one}/") for one in folders)
