"""Fixtures: a shop in whose roles things go wrong, and who answers its phone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.promises.deployment import Places, deployment, embedded, started
from tests.promises.phone.phone import PICKY, Phone
from tests.support.merchant.plugin import install_plugin


@pytest.fixture(params=["files", pytest.param("servers", marks=[pytest.mark.kafka, pytest.mark.postgres])])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    """Where log and ledger are: files, or Kafka and PostgreSQL."""
    if request.param == "files":
        return embedded(tmp_path)
    broker_url, database_url = (request.getfixturevalue(name) for name in ("kafka_url", "postgres_url"))
    return {"broker_url": broker_url, "database_url": database_url}


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    """A file for each customer who was let in."""
    found = tmp_path / "opened"
    found.mkdir()
    return found


@pytest.fixture
async def phone(places: Places, opened: Path, tmp_path: Path) -> AsyncIterator[Phone]:
    """What happens is heard by webhooks, and not listed before one came."""
    broken = tmp_path / "broken"
    async with deployment(tmp_path, **places, CONSUMER_SYNC_INTERVAL_S="600") as found:
        source = PICKY.format(broken=str(broken), opened=str(opened), url=found.warehouse.url)
        found.environ |= install_plugin(tmp_path, "warehouse_plugin", source)
        found.hear(at_work=True)
        async with started(*(found.process(role) for role in ("serve", "work", "sync"))):
            found.pay_order()
            await found.shipped(within_s=60)
            yield Phone(found, broken)
