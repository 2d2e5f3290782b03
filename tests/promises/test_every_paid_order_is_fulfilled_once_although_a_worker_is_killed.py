"""Thousands of webhooks, a third of them duplicates, one worker killed half way: one parcel per order, none missing.
`make chaos` plays it with 20,000."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.campaign import campaign


# case: G2, G5, G13, F1, F2, F30, H10, I21
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.timeout(600)
async def test_on_kafka_and_postgresql(tmp_path: Path, kafka_url: str, postgres_url: str) -> None:
    outcome = await campaign(tmp_path, broker_url=kafka_url, database_url=postgres_url, webhooks=5_000)
    print("\n" + outcome.table())
    assert outcome.good, outcome.table()


# case: G2, G5, G13
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_on_the_embedded_default(tmp_path: Path) -> None:
    outcome = await campaign(
        tmp_path,
        broker_url=f"embedded:{tmp_path}/log.db",
        database_url=f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        webhooks=1_500,
    )
    print("\n" + outcome.table())
    assert outcome.good, outcome.table()
