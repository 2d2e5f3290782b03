"""Every case that can cost money, access or an operator's sleep has a test that names it, or stands among those that
nobody has begun. `tests/cases.toml` is the catalogue: ids and priorities."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"#\s*case:\s*(.+)")
CASE = re.compile(r"\b[A-Z][0-9]+\b")
CATALOGUE: Mapping[str, Mapping[str, Sequence[int]]] = tomllib.loads((TESTS / "cases.toml").read_text())


def ids(table: str) -> set[str]:
    """The cases of one table of the catalogue: of a priority, or those nobody has begun."""
    return {f"{group}{number}" for group, numbers in CATALOGUE[table].items() for number in numbers}


def named() -> dict[str, set[str]]:
    """Case to the files whose tests name it."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("*.py"):
        for line in NAMED.findall(path.read_text()):
            for case in CASE.findall(line):
                found.setdefault(case, set()).add(str(path.relative_to(TESTS)))
    return found


@pytest.mark.parametrize("priority", ["P0", "P1"])
def test_every_case_has_a_test_that_names_it(priority: str) -> None:
    assert sorted(ids(priority) - ids("not_begun") - set(named())) == []


def test_what_nobody_has_begun_is_named_by_nobody() -> None:
    assert sorted(ids("not_begun") & set(named())) == [], "begun: take it off the list"


def test_no_test_names_a_case_that_does_not_exist() -> None:
    known = ids("P0") | ids("P1") | ids("P2") | ids("U")
    assert {case: files for case, files in named().items() if case not in known} == {}
    assert ids("not_begun") <= known


def test_no_case_has_two_priorities() -> None:
    assert len(ids("P0") | ids("P1") | ids("P2")) == sum(len(ids(priority)) for priority in ("P0", "P1", "P2"))
    assert len(ids("P0")) > 150
