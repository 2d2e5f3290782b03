"""Programs that are not Python's: where one is missing its test is skipped with one line; with CI set it fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser


def missing(what: str) -> NoReturn:
    """Skip with this line; with CI set nothing may be skipped for that reason."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def need_program(name: str, package: str) -> str:
    """The path of a program, or the test is skipped."""
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed ({package})")
    return found


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser without a window, which asks nobody outside for anything of its own."""
    from playwright.async_api import async_playwright  # half a second, for a few tests

    arguments = [
        "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--no-first-run", "--disable-quic",
    ]  # fmt: skip
    path = need_program("chromium", "apt-get install chromium")
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=path, args=arguments)
        yield launched
        await launched.close()
