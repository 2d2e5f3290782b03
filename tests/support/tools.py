"""Programs that are not Python's: where one is missing its test is skipped with one line; with CI set it fails."""

from __future__ import annotations

import os
import shutil

import pytest


def missing(what: str) -> None:
    """Skip with this line; with CI set nothing may be skipped for that reason."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def need_program(name: str, package: str) -> str:
    """The path of a program, or the test is skipped."""
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed ({package})")
    return found or ""
