"""Session: the mutants of one module, each made and tested once. It is a file: interrupted, it goes on where it was.
What was noticed stays noticed until the module is another; what survived is tested again by every run."""

from __future__ import annotations

import ast
import compileall
import functools
import hashlib
import os
import shutil
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.commands import init
from cosmic_ray.mutating import MutationVisitor, use_mutation
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult

from tests.mutants.look.lines import AT_IMPORT, BUDGET_S, FOLDER, Lines, statement_lines
from tests.mutants.operators import Own, Source
from tests.mutants.plan import ROOT, Places
from tests.mutants.testing import load_libraries, passes
from tests.mutants.warm import UNFINISHED, CannotSwap, Warm

COPIED = ("consumer", "deploy", "handlers", "tests", "pyproject.toml", "README.md")
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
NOBODY = "no fast test is seen to run it"

cosmic_ray.plugins.OPERATOR_PROVIDERS["own"] = Own()


@dataclass(frozen=True, order=True)
class Mutant:
    """One that no test noticed: which lines it changes, and into which."""

    module: str
    was: str
    becomes: str
    note: str = field(default="", compare=False)


@dataclass
class Tally:
    """What became of a module's mutants. `equivalent` behave as the original does, and say why."""

    module: str
    killed: int = 0
    survived: list[Mutant] = field(default_factory=list)
    equivalent: list[Mutant] = field(default_factory=list)
    untested: int = 0

    @property
    def judged(self) -> int:
        """Those that could have been noticed, and were tested."""
        return self.killed + len(self.survived)


class TestsFail(Exception):
    """The tests of a module fail as it is: no mutant of it can be judged."""

    __test__ = False


@contextmanager
def checkout() -> Iterator[Path]:
    """A copy of the checkout to be mutated, entered; mutants never lie in the real one."""
    tree = FOLDER / f"tree-{os.getpid()}"
    tree.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)
    compileall.compile_dir(tree, quiet=2)  # the runs write no byte code, and would compile everything each time
    load_libraries()
    before, path = Path.cwd(), os.environ.get("PYTHONPATH")
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)  # also for the processes that tests start
    try:
        yield tree
    finally:
        os.chdir(before)
        os.environ.pop("PYTHONPATH")
        if path is not None:
            os.environ["PYTHONPATH"] = path
        shutil.rmtree(tree, ignore_errors=True)
        shutil.rmtree(f"{tree}-temporary", ignore_errors=True)


class Judging:
    """What judges mutants in a `checkout`: a warm process, and what is known of its tests."""

    def __init__(self, places: Places, budget_s: float = BUDGET_S) -> None:
        self._tree = Path.cwd()
        self._lines = Lines(places, budget_s)
        self._warm = Warm(self._tree, places)
        self._believed: set[str] = set()
        self._noticed: defaultdict[str, set[str]] = defaultdict(set)
        self._fail_anyway: set[str] = set()

    def close(self) -> None:
        """End the process."""
        self._warm.stop()

    def judged(self, mutation: MutationSpec) -> WorkResult:
        """Make this mutant and test it; what comes back says which test failed."""
        module, path = str(mutation.module_path), self._tree / mutation.module_path
        operator, was = _operator(mutation), path.read_text()
        becomes = MutationVisitor.mutate_code(was, operator, mutation.occurrence)
        if becomes is None or not _is_python(becomes):
            return WorkResult(WorkerOutcome.SKIPPED)
        diff = "\n".join(unified_diff(was.splitlines(), becomes.splitlines(), n=0, lineterm=""))
        lines = statement_lines(was, mutation.start_pos[0], mutation.end_pos[0])
        seen = self._lines.running(module, lines)
        tests = seen or self._lines.running(module) - {AT_IMPORT}  # nobody traces a hook of the interpreter
        try:
            if AT_IMPORT in tests:
                raise CannotSwap
            note = self._failing(module, (str(path), was, becomes), tests & self._warm.tests)
        except CannotSwap:
            note = self._failing_anew(module, path, mutation)
        outcome = TestOutcome.KILLED if note else TestOutcome.SURVIVED
        return WorkResult(WorkerOutcome.NORMAL, note or ("" if seen else NOBODY), outcome, diff)

    def _failing(self, module: str, change: tuple[str, str, str], tests: set[str]) -> str | None:
        """The first test to fail that passes without the change. Raises CannotSwap."""
        new, first = self._warm.tests - self._lines.seconds.keys(), self._noticed[module]
        while chosen := self._lines.chosen(module, tests - self._fail_anyway, new - self._fail_anyway, first):
            found = self._warm.failing(change, chosen)
            if found is None or found == UNFINISHED:
                return found
            if found in self._believed or not self._warm.failing(None, [one for one in chosen if one[0] == found]):
                self._believed.add(found)
                first.add(found)
                return found
            self._fail_anyway.add(found)
        return None

    def _failing_anew(self, module: str, path: Path, mutation: MutationSpec) -> str | None:
        """The same with the module imported anew: all tests that run any of its lines. Raises TestsFail."""
        chosen = [test for test, _ in self._lines.chosen(module, self._lines.running(module))]
        limit_s = 10 + 4 * _takes_s(self._tree, tuple(chosen))
        with use_mutation(path, _operator(mutation), mutation.occurrence):
            return None if passes(self._tree, chosen, limit_s) else "imported anew"


@functools.cache
def _takes_s(tree: Path, tests: Sequence[str]) -> float:
    """Seconds that these tests take without any mutant. Raises TestsFail when they fail then."""
    began = time.monotonic()
    if not passes(tree, tests, 600):
        raise TestsFail(f"these tests fail without any mutant: {' '.join(tests)}")
    return time.monotonic() - began


def _operator(mutation: MutationSpec) -> Any:
    return cosmic_ray.plugins.get_operator(mutation.operator_name)(**mutation.operator_args)


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def play(module: str, judging: Judging, until: float, say: Callable[[str], None], one_in: int = 1) -> Tally:
    """Test what is left of a module's mutants, until `until` (monotonic) at the latest; `one_in`: only one in so many,
    and with 0 none but those that survived before. Runs in a `checkout`. Raises TestsFail."""
    with _session(module) as work:
        for item in _to_play(module, work, one_in):
            if time.monotonic() > until:
                break
            result = judging.judged(item.mutations[0])
            work.set_result(item.job_id, result)
            if result.test_outcome is TestOutcome.SURVIVED and (mutant := _mutant(module, result)) not in equivalents():
                say(f"  survived: {mutant}")
        return _tally(module, work)


def _to_play(module: str, work: WorkDB, one_in: int) -> list[WorkItem]:
    again = [
        item
        for item, result in work.completed_work_items
        if result.test_outcome is TestOutcome.SURVIVED and _mutant(module, result) not in equivalents()
    ]
    return again + [one for one in work.pending_work_items if one_in and int(one.job_id, 16) % one_in == 0]


def known(module: str) -> Tally | None:
    """What an earlier run found of the module as it is now; None without one."""
    if not _file(module).exists():
        return None
    with _session(module) as work:
        return _tally(module, work)


@functools.cache
def equivalents() -> dict[Mutant, str]:
    """The mutants judged equivalent, with why."""
    rows = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {Mutant(row["module"], row["was"], row["becomes"]): row["why"] for row in rows}


def _file(module: str) -> Path:
    """Named for what the module says: another text is another session."""
    return FOLDER / f"{module.replace('/', '.')}-{hashlib.sha256((ROOT / module).read_bytes()).hexdigest()[:12]}.sqlite"


@contextmanager
def _session(module: str) -> Iterator[WorkDB]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with use_db(str(_file(module)), WorkDB.Mode.create) as work:
        if not work.num_work_items:
            _fill(module, work)
        yield work


def _fill(module: str, work: WorkDB) -> None:
    """All mutants; those not worth a run are marked as skipped."""
    init([Path(module)], work, {})
    source = Source((ROOT / module).read_text())
    placed = [(item.job_id, item.mutations[0]) for item in work.work_items]
    idle = [job for job, it in placed if not source.is_worth(it.operator_name, (it.start_pos, it.end_pos))]
    work.set_multiple_results(idle, WorkResult(WorkerOutcome.SKIPPED))


def _tally(module: str, work: WorkDB) -> Tally:
    tally, judged = Tally(module, untested=len(work.pending_work_items)), equivalents()
    for _, result in work.completed_work_items:
        if result.worker_outcome is WorkerOutcome.SKIPPED:
            continue
        mutant = _mutant(module, result)
        if result.test_outcome is not TestOutcome.SURVIVED:
            tally.killed += 1
        elif mutant in judged:
            tally.equivalent.append(mutant)
        else:
            tally.survived.append(mutant)
    return tally


def _mutant(module: str, result: WorkResult) -> Mutant:
    lines = (result.diff or "").splitlines()
    place = next((line.split()[1].lstrip("-") for line in lines if line.startswith("@@")), "")
    gone = [line[1:].strip() for line in lines if line.startswith("-") and not line.startswith("---")]
    come = [line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++")]
    return Mutant(module, " ".join(gone), " ".join(come), f"line {place} {result.output or ''}".strip())
