"""Lines: which fast tests run which line. One run of them under coverage tells, and how long each takes; what it
saw is kept until the code is another, and serves for every part of it."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

from coverage import CoverageData

from tests.mutants.plan import EVERYWHERE, FAST, ROOT, Places, is_in, tests_of

FOLDER = ROOT / ".cache" / "mutants"
BUDGET_S = 120.0
"""What the tests of one mutant may take together, unless told: the nearest and quickest of those that run its line."""
UNKNOWN_S = 1.0
AT_IMPORT = ""
RAN = (0, 1)
"""How pytest ends when it ran every test, be it that some fail: those are left out."""


class LookFailed(Exception):
    """Not every test was run: what was seen is not what the tests do."""


class Kept:
    """The files that a look leaves: one look for each choice of places."""

    def __init__(self, places: Places) -> None:
        name = hashlib.sha256(" ".join(places).encode()).hexdigest()[:12]
        self.folder = FOLDER if places == EVERYWHERE else FOLDER / f"look-{name}"
        self.lines, self.seconds = self.folder / "lines.sqlite", self.folder / "seconds.json"
        self.texts, self.places = self.folder / "texts.json", self.folder / "places.json"

    def is_of(self, modules: Iterable[str]) -> bool:
        """Whether there is a look, of these modules as they are."""
        known = json.loads(self.texts.read_text()) if self.texts.exists() else {}
        return all(known.get(one) == _hash(ROOT / one) for one in modules)


def look(modules: Sequence[str], places: Places) -> Places:
    """See what each fast test in these places runs, unless a look at them, or at more, was of these modules as they
    are; the places of the look that tells. Takes minutes, everywhere a quarter of an hour. Raises LookFailed."""
    for known in (places, *_wider(places)):
        if Kept(known).is_of(modules):
            return known
    kept = Kept(places)
    kept.folder.mkdir(parents=True, exist_ok=True)
    for old in (kept.lines, kept.seconds, kept.texts):
        old.unlink(missing_ok=True)
    texts = {path.relative_to(ROOT).as_posix(): _hash(path) for path in _sources()}
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--timeout", "60"),
        *(
            "-p",
            "tests.mutants.look.seconds",
            "--cov",
            "--cov-config",
            "tests/mutants/look/coverage.ini",
            "--cov-context",
            "test",
            "--cov-report=",
            *FAST,
            *places,
        ),
    ]
    environment = {**os.environ, "COVERAGE_FILE": str(kept.lines), "MUTANTS_SECONDS": str(kept.seconds)}
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ended.returncode not in RAN or not kept.seconds.exists():
        raise LookFailed(f"pytest did not run every test (exit {ended.returncode}):\n{ended.stdout[-2000:]}")
    kept.places.write_text(json.dumps(places))
    kept.texts.write_text(json.dumps(texts))
    return places


def _wider(places: Places) -> list[Places]:
    """The places of the looks that hold these, those with the fewest tests first."""
    looks = [
        (path.with_name("seconds.json").stat().st_size, tuple(json.loads(path.read_text())))
        for path in (*FOLDER.glob("places.json"), *FOLDER.glob("look-*/places.json"))
    ]
    return [wide for _, wide in sorted(looks) if all(one in wide or is_in(one, *wide) for one in places)]


class Lines:
    """What the last look saw. `budget_s`: what the tests of one mutant may take together."""

    def __init__(self, places: Places, budget_s: float = BUDGET_S) -> None:
        kept = Kept(places)
        self._budget_s = budget_s
        self._data = CoverageData(str(kept.lines))
        self._data.read()
        self._read: dict[str, Mapping[int, list[str]]] = {}
        self.seconds: dict[str, float] = json.loads(kept.seconds.read_text())

    def running(self, module: str, lines: Iterable[int] | None = None) -> set[str]:
        """The tests that run one of these lines, or any line of the module; `AT_IMPORT` is among them where importing
        does."""
        seen = self._seen(module)
        return {test.rpartition("|")[0] for line in (seen if lines is None else lines) for test in seen.get(line, ())}

    def _seen(self, module: str) -> Mapping[int, list[str]]:
        if module not in self._read:
            self._read[module] = self._data.contexts_by_lineno(module)
        return self._read[module]

    def chosen(
        self, module: str, tests: Iterable[str], new: Iterable[str] = (), first: Container[str] = ()
    ) -> list[tuple[str, float]]:
        """Of `tests` those to be tried, each with its seconds, within the budget: those in `first`, then those near the
        module; and all `new` ones near it, which the look has not seen."""
        known = [one for one in tests if one in self.seconds]
        found: list[tuple[str, float]] = []
        for test in sorted(known, key=lambda one: (one not in first, _distance(module, one), self.seconds[one], one)):
            if found and sum(seconds for _, seconds in found) + self.seconds[test] > self._budget_s:
                break
            found.append((test, self.seconds[test]))
        return found + [(one, UNKNOWN_S) for one in new if _distance(module, one) < len(tests_of(module))]


def statement_lines(text: str, first: int, last: int) -> range:
    """The lines of the statement that these lines are part of; of one that holds others, these lines alone."""
    inner = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.stmt) and not hasattr(one, "body")]
    for one in inner:
        if one.lineno <= first and last <= (one.end_lineno or one.lineno):
            return range(one.lineno, (one.end_lineno or one.lineno) + 1)
    return range(first, last + 1)


def _distance(module: str, test: str) -> int:
    places: Sequence[str] = tests_of(module)
    return next((rank for rank, place in enumerate(places) if test.startswith(place)), len(places))


def _sources() -> list[Path]:
    return [path for folder in ("consumer", "handlers") for path in (ROOT / folder).rglob("*.py")]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
