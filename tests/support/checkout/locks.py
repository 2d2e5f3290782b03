"""Locks: what they pin, read as pip reads it: a name, its extras, its version."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT: Final = Path(__file__).resolve().parents[3]
LOCKS: Final = ("requirements.lock", "requirements-build.lock", "requirements-dev.lock")
PEERS_LOCK: Final = "requirements-bench.lock"
"""Of an environment of its own: what `make bench` measures against."""


def pinned(lock: str) -> dict[str, Requirement]:
    """What a lock pins, by name."""
    lines = (CHECKOUT / lock).read_text().splitlines()
    read = [Requirement(line.removesuffix("\\")) for line in lines if line[:1].isalnum()]
    return {canonicalize_name(one.name): one for one in read}


def versions(lock: str) -> dict[str, str]:
    """The version of each, by name."""
    return {name: str(one.specifier).removeprefix("==") for name, one in pinned(lock).items()}
