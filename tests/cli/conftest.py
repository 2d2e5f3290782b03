"""An operator's machine: a folder with a ledger and a log, and the environment of its commands."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.desk import Desk
from tests.support.process import command

Run = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Settings that point into the test's own folder."""
    return {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_LOG_LEVEL": "error",
    }


@pytest.fixture
def desk(environ: dict[str, str]) -> Desk:
    """The same, called in this process."""
    return Desk(environ)


@pytest.fixture
def upgraded(environ: dict[str, str], sqlite_template: Path) -> None:
    """The ledger has its tables, as after `consumer db upgrade`, which takes longer than most of what is typed then."""
    shutil.copyfile(sqlite_template, environ["CONSUMER_DATABASE_URL"].partition("///")[2])


@pytest.fixture
def consumer(environ: dict[str, str]) -> Run:
    """Run `consumer ...` in that environment."""

    def run(*arguments: str, **more: str) -> CompletedProcess[str]:
        return command(*arguments, environ=environ | more)

    return run
