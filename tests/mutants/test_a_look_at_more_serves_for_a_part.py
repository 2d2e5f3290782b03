"""A look at more serves for a part of it, as long as it was of the same code: looking again would take minutes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants.look import lines
from tests.mutants.plan import ROOT, Places

MODULE = "consumer/work/transition.py"


class Looking(Exception):
    """Tests are run."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise Looking

    monkeypatch.setattr(lines, "FOLDER", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)


def looked_at(places: Places, modules: Sequence[str] = (MODULE,), seconds: int = 1) -> None:
    kept = lines.Kept(places)
    kept.folder.mkdir(exist_ok=True)
    kept.texts.write_text(json.dumps({one: lines._hash(ROOT / one) for one in modules}))
    kept.places.write_text(json.dumps(places))
    kept.seconds.write_text(json.dumps({str(number): 1 for number in range(seconds)}))


def test_the_one_with_the_fewest_tests_is_taken_and_its_own_first() -> None:
    part = ("tests/work/dispatch", "tests/work/test_a_burst.py")
    everything, wide = ("handlers", "tests"), ("tests/work",)
    looked_at(everything, seconds=9)
    assert lines.look([MODULE], part) == everything
    looked_at(wide, seconds=5)
    looked_at(("tests/sync",))
    assert lines.look([MODULE], part) == wide
    looked_at(part, seconds=7)
    assert lines.look([MODULE], part) == part


def test_one_that_holds_a_part_only_or_was_of_other_code_does_not_serve() -> None:
    looked_at(("tests/work/dispatch",))
    looked_at(("tests/work/pausing", "tests/work"), ["consumer/work/outcome.py"])
    with pytest.raises(Looking):
        lines.look([MODULE], ("tests/work/dispatch", "tests/work/pausing"))
