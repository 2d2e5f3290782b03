"""Testing a mutant: pytest in a child of this process, which has the libraries loaded already. A new interpreter takes
seconds to load them, which for thousands of mutants is most of a night; a child takes none."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

LIBRARIES = (
    "_pytest.assertion.rewrite", "aiohttp.web", "aiokafka", "aiosqlite", "alembic.command", "argon2", "asyncpg",
    "hypothesis", "hypothesis.strategies", "jinja2", "jsonpointer", "opentelemetry.sdk.trace.export", "orjson",
    "prometheus_client", "pytest_asyncio.plugin", "pytest_timeout", "rich.console",
    "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.sqlite.aiosqlite", "sqlalchemy.ext.asyncio", "sqlmodel",
    "standardwebhooks", "structlog", "typer", "uvloop",
)  # fmt: skip
OURS = ("consumer", "handlers", "tests")
OPTIONS = (
    "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:schemathesis", "--timeout", "60",
    "-m", "not (slow or kafka or postgres or browser)",
)  # fmt: skip
LOOK_EVERY_S = 0.02


def load_libraries() -> None:
    """What every child needs and none of it is mutated."""
    for name in LIBRARIES:
        importlib.import_module(name)


def passes(tree: Path, tests: Sequence[str], limit_s: float) -> bool:
    """Whether these tests pass on the code in `tree`; tests that take longer than `limit_s` do not. None of the code
    under test may have been imported by this process."""
    child = os.fork()
    if child == 0:
        _run(tree, tests)
    return ended(child, limit_s) == 0


def ended(child: int, limit_s: float) -> int | None:
    """The exit code of a child that leads a process group; None when it took longer than that, and was ended."""
    until = time.monotonic() + limit_s
    try:
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(LOOK_EVERY_S)
    except BaseException:
        end(child)
        raise
    end(child)
    return None


def end(child: int) -> None:
    """End a process, and whatever it has started."""
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def become_quiet(tree: Path) -> None:
    """In a new child: a group of its own, nothing printed, the code of `tree` and none other."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    for name in [one for one in sys.modules if one.partition(".")[0] in OURS]:
        del sys.modules[name]
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True


def _run(tree: Path, tests: Sequence[str]) -> None:
    """In the child: never returns."""
    code = 70
    try:
        become_quiet(tree)
        code = int(pytest.main([*OPTIONS, "--rootdir", str(tree), *(str(tree / test) for test in tests)]))
    finally:
        os._exit(code)
