"""An operator's machine beside a test's own workers: the ledger that they write, and their log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumer.broker import Broker
from tests.work.workshop import embedded


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Of the ledger that the test's workers write."""
    return {**environ, "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """An embedded log with the workers' topic."""
    async with embedded(tmp_path / "log.db") as found:
        yield found
