"""Runbook: the commands that the runbooks of a drill's alerts tell, typed as they are written there.

A word in capitals stands for a name: `scene.names` has it, or the command is not for this fault.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tests.drills.rules import RULES, alerts

CHECKOUT = RULES.parents[1]
_TYPED = re.compile(r"(?m)^    consumer (.+)$")
_NAME = re.compile(r"[A-Z][A-Z_]+")


def runbooks(names: Collection[str]) -> list[Path]:
    """Those of these alerts, in the order of their own names."""
    rules = alerts()
    return sorted({CHECKOUT / rules[name]["annotations"]["runbook"] for name in names})


def diagnosis(path: Path) -> list[str]:
    """What it says to type in order to understand."""
    return _TYPED.findall(path.read_text().partition("**Diagnosis.**")[2].partition("**Cure.**")[0])


def cure(path: Path) -> list[str]:
    """What it says to type when the cause is mended."""
    return _TYPED.findall(path.read_text().partition("**Cure.**")[2])


def placeholders(line: str) -> set[str]:
    """The names that the line wants."""
    return {word for word in line.split() if _NAME.fullmatch(word)}


def words(line: str, names: Mapping[str, str]) -> Sequence[str] | None:
    """The line as a shell would pass it on; None when a name is not known here."""
    if not placeholders(line) <= names.keys():
        return None
    return [names.get(word, word) for word in shlex.split(line)]
