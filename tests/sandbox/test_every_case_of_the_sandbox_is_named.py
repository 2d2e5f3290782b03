"""The X cases of the catalogue: each one has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

# P2 cases are X29, X64 and X65; they are covered too, so all are asked for.
CASES = {f"X{number}" for number in range(1, 67)}
_NAMED = re.compile(r"# case: ((?:[A-Z]+\d+(?:, )?)+)")


def named_cases() -> set[str]:
    """Every case a test of this folder names."""
    found: set[str] = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        for names in _NAMED.findall(path.read_text()):
            found |= {name.strip() for name in names.split(",")}
    return found


def test_every_x_case_has_a_test() -> None:
    missing = CASES - named_cases()
    assert not missing, f"no test names {sorted(missing, key=lambda name: int(name[1:]))}"
