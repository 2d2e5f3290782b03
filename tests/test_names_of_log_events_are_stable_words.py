"""What happened is a word that can be searched for, whatever the details: they are fields."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_EVERY_LINE = frozenset({"at", "level", "role", "pid", "version"})
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
WORD = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")


def sources() -> Iterator[Path]:
    """Everything that an operator's log comes from; the simulator stands in for somebody else."""
    for folder in ("consumer", "handlers"):
        for path in (ROOT / folder).rglob("*.py"):
            if ROOT / "consumer" / "sandbox" not in path.parents:
                yield path


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Each call that logs a line, also by a level chosen at run time (`say`)."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = node.func
        if isinstance(function, ast.Attribute):
            if function.attr in LEVELS and "log" in ast.unparse(function.value).lower():
                yield node
        elif isinstance(function, ast.Name) and function.id in {"Condition", "say"}:
            yield node


@functools.cache
def logged() -> Sequence[tuple[Path, ast.Call]]:
    """Each call that logs a line, and its file."""
    return [(path, node) for path in sources() for node in calls(ast.parse(path.read_text()))]


# case: O1
def test_all_of_them() -> None:
    found = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", str(event.value))
        for path, node in logged()
        if isinstance(event := node.args[0], ast.Constant)
    ]
    assert len(found) > 100
    assert [place for place, event in found if not WORD.match(event)] == []


def test_none_is_put_together_from_details() -> None:
    woven = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in logged()
        if isinstance(event := node.args[0], ast.JoinedStr) and not ast.unparse(event).endswith("_over'")
    ]
    assert woven == []


def _own(node: ast.Call) -> set[str]:
    """A condition is told which level its lines have."""
    return {"level"} if isinstance(node.func, ast.Name) and node.func.id == "Condition" else set()


def test_no_detail_has_the_name_of_what_every_line_says() -> None:
    """The time would be written over it, or it over the role."""
    taken = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in logged()
        if {keyword.arg for keyword in node.keywords} & (OF_EVERY_LINE - _own(node))
    ]
    assert taken == []
