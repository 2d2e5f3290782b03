"""What the tests of walks of the events share: the stage."""

from __future__ import annotations

from dataclasses import replace

from consumer.sync.backfill.stage import Backfill
from tests.sync.conftest import World


def backfill(world: World, token: int = 1) -> Backfill:
    return Backfill(replace(world.app, token=lambda: token), world.settlement())
