"""Fixtures of the access tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from consumer.ledger import Database
from tests.access.shop import Shop


@pytest.fixture
def shop(sqlite_ledger: Database) -> Shop:
    """The access handlers with their defaults."""
    return Shop(sqlite_ledger)


@pytest.fixture
def shop_with(sqlite_ledger: Database) -> Callable[..., Shop]:
    """The access handlers with settings."""

    def make(**options: Any) -> Shop:
        return Shop(sqlite_ledger, **options)

    return make
