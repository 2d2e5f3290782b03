"""Every case that can cost money, access or an operator's sleep, and what the document does not show, has a test that
names it, or stands among those that nobody has begun. `tests/cases.toml` is the catalogue: a sentence each."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.cases import PRIORITIES, catalogue, main, named, not_begun

ROOT = Path(__file__).resolve().parents[2]
CITED = re.compile(r"\bcases? ((?:[A-Z][0-9]+(?:(?:,? and |, ?)(?=[A-Z][0-9]))?)+)")


def ids(*priorities: str | None) -> set[str]:
    return {case.id for case in catalogue().values() if case.priority in priorities}


@pytest.mark.parametrize("priority", ["P0", "P1", pytest.param(None, id="U")])
def test_every_case_has_a_test_that_names_it(priority: str | None) -> None:
    assert sorted(ids(priority) - not_begun() - set(named())) == []


def test_what_nobody_has_begun_is_named_by_nobody() -> None:
    assert sorted(not_begun() & set(named())) == [], "begun: take it off the list"


def test_no_test_names_a_case_that_does_not_exist() -> None:
    assert {case: files for case, files in named().items() if case not in catalogue()} == {}
    assert not_begun() <= set(catalogue())


def test_no_text_cites_a_case_that_does_not_exist() -> None:
    """ "case B34" in a docstring or a README can be looked up."""
    cited: dict[str, set[str]] = {}
    for folder in ("consumer", "handlers", "tests", "deploy"):
        for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]:
            for group in CITED.findall(path.read_text()):
                for case in re.findall(r"[A-Z][0-9]+", group):
                    cited.setdefault(case, set()).add(str(path.relative_to(ROOT)))
    assert len(cited) > 50, "the texts do cite cases"
    assert {case: files for case, files in cited.items() if case not in catalogue()} == {}


def test_every_case_has_a_sentence_and_a_priority() -> None:
    assert {case.id for case in catalogue().values() if case.id[0] != "U"} == ids(*PRIORITIES)
    assert [case.id for case in catalogue().values() if not 20 <= len(case.sentence) <= 120] == []
    assert len(ids("P0")) > 150


def test_no_case_has_two_priorities() -> None:
    """A case of another group's letter would take the place of its namesake unseen."""
    groups = tomllib.loads((ROOT / "tests" / "cases.toml").read_text())
    del groups["not_begun"]
    assert [id_ for group, cases in groups.items() for id_ in cases if id_[0] != group] == []


def test_a_case_can_be_looked_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["B34"]) == 0
    assert capsys.readouterr().out.startswith("B34 P1 Events that came between the last page and its end")
    strange = "Z1"
    assert main([strange]) == 1
    assert capsys.readouterr().err == f"error[unknown_case]: there is no case {strange}\n"
