"""`kill -9` in the middle of `replay apply`, again and again, while live orders come in: resumed, none skipped, none
doubled; and the live ones hardly wait. How long they wait on a quiet machine: `python -m tests.bench replay`."""

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
    assert (found.done["as_planned"], found.done["items"]) == (True, {"taken": EVENTS})
    assert len(found.replayed) == EVENTS
    assert set(found.replayed.values()) == {1}
    print(found)
    assert median(found.during) < 2.0, "live orders go before the replay"
