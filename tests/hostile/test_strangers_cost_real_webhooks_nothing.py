"""Among a flood of slow, half-open, oversize, compressed, forged and stuffed requests every real webhook is answered
200 and its order shipped once. `python -m tests.chaos strangers` plays it for ten minutes, and measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.storage import Storage, on_files, on_servers
from tests.chaos.strangers import strangers
from tests.hostile.strangers import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
TIMES = {"real webhooks, p99"}  # depends on what else the machine does


@pytest.fixture(params=["files", pytest.param("servers", marks=[pytest.mark.kafka, pytest.mark.postgres])])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "files":
        return on_files(tmp_path)
    return on_servers(request.getfixturevalue("kafka_broker"), request.getfixturevalue("postgres_url"))


async def test_strangers_cost_real_webhooks_nothing(tmp_path: Path, storage: Storage) -> None:
    # case: I22, G8
    found = await strangers(tmp_path, storage, seconds=6.0, limit_s=60.0, CONSUMER_BODY_TIMEOUT_S="3")
    assert [one for one in found.figures if not one.good and one.what not in TIMES] == []
    assert {told.partition(" ")[0] for told in found.answers} == set(KINDS)
    assert {told for told in found.answers if told.partition(" ")[0] in ("slow", "half_open", "oversize")} <= {
        "slow 400", "half_open cut", "oversize 413", "oversize cut",
    }, found.answers  # fmt: skip
