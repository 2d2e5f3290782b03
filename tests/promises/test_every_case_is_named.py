"""Every case of fulfilment and access that can cost money, access or an operator's sleep has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"#\s*case:\s*(.+)")
# The P0 and P1 cases of the case catalogue: global properties, fulfilment, access.
WANTED = {
    "G": [*range(1, 14)],
    "F": [*range(1, 13), *range(15, 26), *range(27, 34), *range(35, 38)],
    "A": [*range(1, 11), *range(13, 18), *range(19, 23), *range(24, 48), 50, 51, 52, 53],
}
ABSENT = {"A18", "A23", "A46"}  # numbers the catalogue does not use


def named() -> set[str]:
    """The cases that the tests name."""
    found: set[str] = set()
    for path in TESTS.rglob("*.py"):
        for line in NAMED.findall(path.read_text()):
            found |= {case.strip() for case in line.split(",")}
    return found


def test_every_case_has_a_test_that_names_it() -> None:
    wanted = {f"{group}{number}" for group, numbers in WANTED.items() for number in numbers} - ABSENT
    assert sorted(wanted - named()) == []
