"""`kill -9` in the middle of `replay apply`, again and again, while live orders come in: resumed, none skipped, none
doubled; and the live ones hardly wait. How long they wait, with 20,000 events: `python -m tests.bench replay`."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import pytest

from tests.support.handling.beside_live import replayed_beside_live

EVENTS = int(os.environ.get("CONSUMER_TEST_REPLAYED", "600"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + EVENTS // 10)]


# case: R7, R8
async def test_none_is_skipped_none_is_doubled(tmp_path: Path) -> None:
    found = await replayed_beside_live(tmp_path, count=EVENTS, kills=3, before=max(20, EVENTS // 100))
    print(found)
    assert found.problem(EVENTS) is None
    assert median(found.during) < 2.0, "live orders go before the replay"
