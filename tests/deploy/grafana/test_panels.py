"""Panels: where all is well each shows something, so that an empty one means that nobody tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.grafana.dashboards import DASHBOARDS
from tests.drills.play import scene
from tests.drills.rules import QUIET_SPEED
from tests.support.ports import eventually


# case: O5
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_where_all_is_well_each_panel_shows_something(tmp_path: Path) -> None:
    """On the real `/metrics` of real processes, by a real Prometheus."""
    queries = [query for board in DASHBOARDS for panel in board.panels for query, _ in panel.queries]
    async with scene(tmp_path, speed=QUIET_SPEED) as here:

        async def all_show() -> bool:
            empty = [query for query in queries if not await here.watcher.shows(query)]
            assert not empty, f"empty: {empty}"
            return True

        async with here.found.busy(orders_per_s=1, subscribe_every_s=5):
            await eventually(all_show, within_s=180, every_s=1.0, what="every panel shows something")
