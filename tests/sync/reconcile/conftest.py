"""A walk of the events has begun here: what it found paid since is ours."""

from __future__ import annotations

import pytest

from tests.sync.conftest import World
from tests.sync.reconciling import events_walked


@pytest.fixture
async def world(world: World) -> World:
    """The same, with that walk."""
    await events_walked(world)
    return world
