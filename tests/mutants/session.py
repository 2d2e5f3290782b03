"""Session: the mutants of one module, each made and tested once. It is a file: interrupted, it goes on where it was."""

from __future__ import annotations

import compileall
import functools
import hashlib
import os
import shutil
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.commands import init
from cosmic_ray.mutating import use_mutation
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

from tests.mutants.operators import Own, Source
from tests.mutants.plan import ROOT, tests_of
from tests.mutants.testing import load_libraries, passes

FOLDER = ROOT / ".cache" / "mutants"
COPIED = ("consumer", "handlers", "tests", "pyproject.toml", "README.md")
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
SLOWEST_S = 300.0
SAY_EVERY = 25

cosmic_ray.plugins.OPERATOR_PROVIDERS["own"] = Own()


@dataclass(frozen=True, order=True)
class Mutant:
    """One that no test noticed: which lines it changes, and into which."""

    module: str
    was: str
    becomes: str


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


def play(module: str, until: float, say: Callable[[str], None], one_in: int = 1) -> Tally:
    """Test what is left of a module's mutants, until `until` (monotonic) at the latest; `one_in`: only one in so many,
    always the same ones. Runs in a `checkout`. Raises TestsFail."""
    tree, tests = Path.cwd(), tests_of(module)
    with _session(module) as work:
        pending = [one for one in work.pending_work_items if int(one.job_id, 16) % one_in == 0]
        if pending and time.monotonic() < until:
            limit_s = min(SLOWEST_S, 10 + 4 * _takes_s(tree, tests))
            for number, item in enumerate(pending):
                if time.monotonic() > until:
                    break
                result = _tested(item.mutations[0], tree, tests, limit_s)
                work.set_result(item.job_id, result)
                if number and number % SAY_EVERY == 0:
                    say(f"  {number} of {len(pending)}")
                if result.test_outcome is TestOutcome.SURVIVED:
                    say(f"  survived {number + 1}/{len(pending)}: {_mutant(module, result.diff or '')}")
        return _tally(module, work)


@functools.cache
def _takes_s(tree: Path, tests: Sequence[str]) -> float:
    """Seconds that these tests take without any mutant. Raises TestsFail when they fail then."""
    began = time.monotonic()
    if not passes(tree, tests, 600):
        raise TestsFail(f"these tests fail without any mutant: {' '.join(tests)}")
    return time.monotonic() - began


def _tested(mutation: MutationSpec, tree: Path, tests: Sequence[str], limit_s: float) -> WorkResult:
    """Make the mutant, test it, and undo it."""
    path = tree / mutation.module_path
    operator = cosmic_ray.plugins.get_operator(mutation.operator_name)(**mutation.operator_args)
    with use_mutation(path, operator, mutation.occurrence) as (was, becomes):
        if becomes is None:
            return WorkResult(WorkerOutcome.SKIPPED)
        outcome = TestOutcome.SURVIVED if passes(tree, tests, limit_s) else TestOutcome.KILLED
        diff = "\n".join(unified_diff(was.splitlines(), becomes.splitlines(), n=0, lineterm=""))
    return WorkResult(WorkerOutcome.NORMAL, None, outcome, diff)


def known(module: str) -> Tally | None:
    """What an earlier run found of the module as it is now; None without one."""
    if not _file(module).exists():
        return None
    with _session(module) as work:
        return _tally(module, work)


def equivalents() -> dict[Mutant, str]:
    """The mutants judged equivalent, with why."""
    rows = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {Mutant(row["module"], row["was"], row["becomes"]): row["why"] for row in rows}


def _file(module: str) -> Path:
    """Named for what the module says and which tests judge it: another text is another session."""
    text = (ROOT / module).read_bytes() + "".join(_tests_text(tests_of(module))).encode()
    return FOLDER / f"{module.replace('/', '.')}-{hashlib.sha256(text).hexdigest()[:12]}.sqlite"


def _tests_text(tests: Iterable[str]) -> Iterator[str]:
    for test in tests:
        path = ROOT / test
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file.read_text()


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
    for item in work.work_items:
        [mutation] = item.mutations
        if not source.is_worth(mutation.operator_name, (mutation.start_pos, mutation.end_pos)):
            work.set_result(item.job_id, WorkResult(WorkerOutcome.SKIPPED))


def _tally(module: str, work: WorkDB) -> Tally:
    tally, judged = Tally(module, untested=len(work.pending_work_items)), equivalents()
    for _, result in work.completed_work_items:
        if result.worker_outcome is WorkerOutcome.SKIPPED:
            continue
        mutant = _mutant(module, result.diff or "")
        if result.test_outcome is not TestOutcome.SURVIVED:
            tally.killed += 1
        elif mutant in judged:
            tally.equivalent.append(mutant)
        else:
            tally.survived.append(mutant)
    return tally


def _mutant(module: str, diff: str) -> Mutant:
    lines = diff.splitlines()
    gone = [line[1:].strip() for line in lines if line.startswith("-") and not line.startswith("---")]
    come = [line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++")]
    return Mutant(module, " ".join(gone), " ".join(come))
