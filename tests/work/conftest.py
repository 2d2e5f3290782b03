"""A log per test for the worker's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumer.broker import Broker
from tests.work.workshop import embedded


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """An embedded log with the topic `payments.events`."""
    async with embedded(tmp_path / "log.db") as found:
        yield found
