"""Fixtures of the fulfilment tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from consumer.ledger import Database
from tests.support.handling.projections import Projections

MODULE = "handlers.fulfilment.handler"


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
