"""Never green while money is stuck: a fault is noticed, its true cause is named, and green comes back by itself after
the cure. The whole table: `make faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.play import on_files, play
from tests.faults.rows.every import EMBEDDED, REPRESENTATIVE
from tests.faults.scene import Fault

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


# case: O2, O3, O9
@pytest.mark.parametrize(
    "fault", [one for one in EMBEDDED if one.name in REPRESENTATIVE], ids=lambda one: str(one.name)
)
async def test_it_is_named_and_heals(fault: Fault, tmp_path: Path) -> None:
    async with on_files(tmp_path) as scene:
        played = await play(fault, scene)
    assert played.code in fault.codes
