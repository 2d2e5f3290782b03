"""A log per test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumer.broker import Broker, EmbeddedBroker
from tests.work.workshop import make_topics


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """An embedded log with the topic `payments.events`."""
    found = EmbeddedBroker(tmp_path / "log.db")
    await found.start()
    await make_topics(found)
    yield found
    await found.stop()
