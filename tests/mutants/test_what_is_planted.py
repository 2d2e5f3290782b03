"""What is planted: mistakes that a test should notice, and nothing else; each is made once, and a mutant is undone."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import MutationVisitor, use_mutation

from tests.mutants import plan
from tests.mutants.operators import DropStatement, Source
from tests.mutants.plan import DECISIVE, ROOT, modules
from tests.simulation.__main__ import planted

PLANTS = tomllib.loads((ROOT / "tests/simulation/plants.toml").read_text())["plant"]
TEXT = '''"""A module."""
LIMIT = 5

def decide(amount: int, least: int = 3) -> int | None:
    """What it says."""
    total: int = amount
    total += 1
    log.info("decided", total=1)
    note(total)
    if total < least:
        raise ValueError(f"{total + 1}")
    return total
'''


def mutants() -> list[str]:
    """The text with each statement left out, in turn."""
    found: list[str] = []
    while (text := MutationVisitor.mutate_code(TEXT, DropStatement(), len(found))) is not None:
        found.append(text)
    return found


def test_each_statement_is_left_out_once_and_the_result_is_python() -> None:
    changed = [next(line.strip() for line in text.splitlines() if line not in TEXT.splitlines()) for text in mutants()]
    assert changed.count("return None") == 1
    assert changed.count("pass") == len(changed) - 1 == 5
    for text in mutants():
        compile(text, "mutant", "exec")


@pytest.mark.parametrize(
    ("line", "column", "operator", "worth"),
    [
        (2, 8, "core/NumberReplacer", False),  # tuning
        (4, 43, "core/ReplaceBinaryOperator_BitOr_BitAnd", False),  # an annotation
        (4, 37, "core/NumberReplacer", False),  # a default
        (7, 13, "core/NumberReplacer", True),
        (8, 30, "core/NumberReplacer", False),  # a log line
        (9, 4, "own/DropStatement", True),
        (10, 13, "core/ReplaceComparisonOperator_Lt_LtE", True),
        (10, 13, "core/ReplaceComparisonOperator_Lt_Is", False),
        (11, 36, "core/NumberReplacer", False),  # a message
    ],
)
def test_what_no_test_should_notice_is_not_planted(line: int, column: int, operator: str, worth: bool) -> None:
    assert Source(TEXT).is_worth(operator, ((line, column), (line, column + 1))) is worth


def test_a_mutant_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(TEXT)
    with use_mutation(path, DropStatement(), 0) as (was, becomes):
        assert (was, becomes) == (TEXT, path.read_text())
        assert becomes != TEXT
    assert path.read_text() == TEXT
    assert get_ast(TEXT).get_code() == TEXT


def test_every_module_that_decides_has_tests_and_is_played_first() -> None:
    every = modules([])
    assert every[: len(DECISIVE)] == list(DECISIVE)
    assert len(every) == len(set(every)) > 100
    for module in every:
        assert [one for one in plan.tests_of(module) if not (ROOT / one).exists()] == []
    assert modules(["consumer/work/pausing"]) == ["consumer/work/pausing/pauser.py", "consumer/work/pausing/rules.py"]
    with pytest.raises(ValueError, match="no module"):
        modules(["consumer/nothing.py"])


def test_a_part_is_judged_by_its_mirror_and_by_what_imports_it_all_by_everything() -> None:
    ingest = plan.places(["consumer/work/ingest"], modules(["consumer/work/ingest"]))
    assert {"tests/work/ingest", "tests/work/dispatch", "tests/contract/ledger/handling"} < set(ingest)
    assert "tests/crash/test_any_interleaving_ends_in_the_same_tables.py" in ingest
    assert [one for one in ingest if one.startswith(("tests/sync", "tests/work/ingest/", "tests/mutants"))] == []
    confirm = plan.places(["consumer/sync/confirm"], modules(["consumer/sync/confirm"]))
    assert "tests/sync/confirm" in confirm
    assert "tests/sync" not in confirm
    reconcile = plan.places(["consumer/sync/reconcile"], modules(["consumer/sync/reconcile"]))
    assert "tests/sync/test_one_odd_record_stops_no_reading.py" in reconcile, "by what it shares with the others"
    assert "tests/sync" in plan.places(["consumer/sync"], modules(["consumer/sync"]))
    assert plan.places([], modules([])) == plan.EVERYWHERE
    quick = ["consumer/sync/refresh", "consumer/work/pausing"]
    assert plan.places(quick, modules(quick), near=True) == (
        "tests/sync/refresh",
        "tests/work/execution",
        "tests/work/pausing",
    )


def test_what_is_called_equivalent_still_stands_in_the_code() -> None:
    for row in tomllib.loads((ROOT / "tests/mutants/equivalent.toml").read_text())["mutant"]:
        code = (ROOT / row["module"]).read_text()
        assert "".join(row["was"].split()) in "".join(code.split()), "a statement of several lines is told in one"
        assert row["why"]
        assert row["was"] != row["becomes"]


@pytest.mark.parametrize("plant", PLANTS, ids=[plant["name"] for plant in PLANTS])
def test_what_make_plant_replaces_stands_once_and_the_result_is_python(plant: dict[str, Any], tmp_path: Path) -> None:
    files = {edit["file"] for edit in (plant, *plant.get("also", ()))}
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    with planted(tmp_path, plant):
        for file in files:
            text = (tmp_path / file).read_text()
            assert text != (ROOT / file).read_text()
            compile(text, file, "exec")
