"""Cases: what is meant by "case B34". `python -m tests.cases B34 F12` says it, and which tests name it."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
NAMED = re.compile(r"#\s*case:\s*(.+)")
CASE = re.compile(r"\b[A-Z][0-9]+\b")
PRIORITIES = ("P0", "P1", "P2")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case. Group U (what the service's document does not show) has no priority."""

    id: str
    priority: str | None
    sentence: str


def catalogue() -> Mapping[str, Case]:
    """Every case of `cases.toml` by its id."""
    groups = {name: group for name, group in _document().items() if isinstance(group, dict)}
    return {id_: _case(id_, line) for group in groups.values() for id_, line in group.items()}


def not_begun() -> frozenset[str]:
    """The ids of the cases that nobody has begun."""
    return frozenset(_document()["not_begun"])


def named() -> Mapping[str, set[str]]:
    """Case to the files whose tests name it."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("*.py"):
        for line in NAMED.findall(path.read_text()):
            for case in CASE.findall(line):
                found.setdefault(case, set()).add(str(path.relative_to(TESTS)))
    return found


def _document() -> dict[str, Any]:
    return tomllib.loads((TESTS / "cases.toml").read_text())


def _case(id_: str, line: str) -> Case:
    first, _, rest = line.partition(" ")
    if first in PRIORITIES:
        return Case(id=id_, priority=first, sentence=rest)
    return Case(id=id_, priority=None, sentence=line)


def main(asked: Sequence[str]) -> int:
    """Print the cases asked for, or all; 1 when one of them does not exist."""
    known, proved = catalogue(), named()
    unknown = [id_ for id_ in asked if id_ not in known]
    for id_ in [id_ for id_ in asked if id_ in known] if asked else known:
        case = known[id_]
        print(" ".join(part for part in (case.id, case.priority, case.sentence) if part))
        for path in sorted(proved.get(id_, ())) if asked else ():
            print(f"    tests/{path}")
    for id_ in unknown:
        print(f"error[unknown_case]: there is no case {id_}", file=sys.stderr)
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
