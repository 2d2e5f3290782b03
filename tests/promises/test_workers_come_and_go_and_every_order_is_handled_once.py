"""Workers come and go under load, 2 to 8 to 2: every order is handled, and once.

How long an order waits meanwhile depends on the machine: `python -m tests.chaos scaling` holds that, on a quiet one.
Here other tests take the processors, and the bound only finds a worker that takes nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.scaling import scaling

LOOSE_S = 60.0


# case: O8
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.timeout(590)
async def test_on_kafka_and_postgresql(tmp_path: Path, kafka_url: str, postgres_url: str) -> None:
    scaled = await scaling(tmp_path, broker_url=kafka_url, database_url=postgres_url)
    assert scaled.is_exact, scaled.table()
    assert {one.name for one in scaled.phases} == {"2", "2 to 8", "8", "8 to 2"}
    assert all(one.waits for one in scaled.phases), scaled.table()
    assert scaled.worst_s < LOOSE_S, scaled.table()
