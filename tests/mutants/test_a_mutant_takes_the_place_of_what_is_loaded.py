"""A mutant takes the place of what is loaded: functions keep their identity and get other code, and of the tests those
are run that run its line, the nearest and quickest first."""

from __future__ import annotations

import gc
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from coverage import CoverageData

from tests.mutants.look import lines
from tests.mutants.look.lines import AT_IMPORT, Lines, statement_lines
from tests.mutants.swap import functions_by_file, swap

TEXT = """
from functools import cache

def kept(function):
    name = "kept"
    def inside(value):
        return name, function(value) + 1
    return inside

@kept
def twice(value):
    return [one * 2 for one in (value,)][0]

class Shop:
    @property
    def open(self):
        return True

    @cache
    def price(self, amount):
        if (amount
                > 5):
            return amount
        return 5
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "shop.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("shop", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def changed(module: ModuleType, was: str, becomes: str) -> bool:
    assert TEXT.count(was) == 1
    path = str(module.__file__)
    return swap(functions_by_file()[path], path, TEXT, TEXT.replace(was, becomes))


def test_decorated_nested_and_cached_functions_and_properties_change_where_they_are(module: ModuleType) -> None:
    shop, twice = module.Shop(), module.twice
    assert (twice(3), shop.open, shop.price(7)) == (("kept", 7), True, 7)
    assert changed(module, "one * 2", "one * 3")
    assert twice(3) == ("kept", 10)
    assert changed(module, "+ 1", "- 1")
    assert twice(3) == ("kept", 5)
    assert changed(module, "return True", "return None")
    assert shop.open is None
    assert changed(module, "> 5", "> 50")
    assert (shop.price(7), shop.price(8)) == (7, 5)


def test_what_a_command_froze_changes_too(module: ModuleType) -> None:
    gc.freeze()
    try:
        assert changed(module, "* 2", "* 3")
        assert module.twice(3) == ("kept", 10)
    finally:
        gc.unfreeze()


def test_a_function_that_would_close_over_other_names_has_to_be_imported(module: ModuleType) -> None:
    assert not changed(module, "return name, function(value) + 1", "return function(value) + 1")


def test_the_lines_of_a_statement_are_its_own(module: ModuleType) -> None:
    number = TEXT.splitlines().index("        if (amount") + 1
    assert list(statement_lines(TEXT, number + 1, number + 1)) == [number + 1]
    text = "def f():\n    return g(\n        1,\n    )\n"
    assert list(statement_lines(text, 3, 3)) == [2, 3, 4]


def test_the_nearest_tests_of_a_line_are_tried_first_and_no_longer_than_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "FOLDER", tmp_path)
    kept = lines.Kept(("tests/fulfilment",))
    kept.folder.mkdir()
    module, near, far = (
        "handlers/fulfilment/store.py",
        "tests/fulfilment/test_orders.py::test_",
        "tests/cli/test_a.py::",
    )
    kept.seconds.write_text(json.dumps({f"{near}slow": 9, f"{near}quick": 1, f"{far}quick": 0.1, f"{far}slow": 30}))
    seen = CoverageData(str(kept.lines))
    for test in (f"{near}slow", f"{near}quick", f"{far}quick", f"{far}slow"):
        seen.set_context(f"{test}|run")
        seen.add_lines({module: [5]})
    seen.set_context(AT_IMPORT)
    seen.add_lines({module: [1]})
    seen.write()
    looked = Lines(("tests/fulfilment",), 20.0)
    assert looked.running(module, [1]) == {AT_IMPORT}
    assert looked.running(module, [2]) == set()
    running = looked.running(module, [5])
    new = [f"{near}new", f"{far}new"]
    quick, slow = f"{near}quick", f"{near}slow"
    assert tried(looked.chosen(module, running, new)) == [quick, slow, f"{far}quick", f"{near}new"]
    assert tried(looked.chosen(module, running, first={slow})) == [slow, quick, f"{far}quick"]


def tried(chosen: list[tuple[str, float]]) -> list[str]:
    return [test for test, _ in chosen]
