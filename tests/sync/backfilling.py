"""What the tests of walks of the events share: the stage."""

from __future__ import annotations

from consumer.sync.backfill.stage import Backfill
from tests.sync.conftest import World


def backfill(world: World, token: int = 1) -> Backfill:
    return Backfill(
        world.reader, world.database, world.outlet, clock=world.clock, token=lambda: token, figures=world.figures
    )
