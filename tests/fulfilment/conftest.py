"""Fixtures of the fulfilment tests."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from consumer.ledger import Database
from tests.support.handling.projections import Projections

MODULE = "handlers.fulfilment.handler"


class Bench:
    """One database for many generated histories, each an application of its own, and the loop it belongs to."""

    def __init__(self, path: Path) -> None:
        self.runner = asyncio.Runner()
        self.database = Database(f"sqlite+aiosqlite:///{path}")
        self.names = (f"app{number}" for number in count())

    def close(self) -> None:
        """End both."""
        self.runner.run(self.database.stop())
        self.runner.close()


@pytest.fixture
def orders(sqlite_ledger: Database) -> Projections:
    """The fulfilment handlers, for shops whose paid orders all go at once; `test_signed_orders` asks first."""
    return Projections(sqlite_ledger, MODULE, options={"matching": "off"})


@pytest.fixture
def orders_with(sqlite_ledger: Database) -> Callable[..., Projections]:
    """The fulfilment handlers with settings."""

    def make(**options: Any) -> Projections:
        return Projections(sqlite_ledger, MODULE, options=options)

    return make


@pytest.fixture(scope="module")
def bench(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One database for all histories of a module."""
    path = tmp_path_factory.mktemp("fulfilment") / "ledger.db"
    shutil.copyfile(sqlite_template, path)
    made = Bench(path)
    yield made
    made.close()
