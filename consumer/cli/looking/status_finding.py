"""Finding: one thing that is not as it should be, and how bad it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Grade(IntEnum):
    """How things stand; the number is the exit code of `status`. Stuck: orders wait. Unknown: nobody can tell."""

    HEALTHY = 0
    DEGRADED = 1
    STUCK = 2
    UNKNOWN = 3


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be."""

    grade: Grade
    code: str
    text: str


def worst(findings: Sequence[Finding]) -> Grade:
    """The grade of the whole."""
    return max((finding.grade for finding in findings), default=Grade.HEALTHY)
