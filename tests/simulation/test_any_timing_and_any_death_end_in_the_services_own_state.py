"""Whatever reaches two workers of a life, or `sync` reads of it, while they are killed, stand still, and their network
and disk fail: the service's own state in the end, each effect once. One loop, one seed, the same story each time."""

from __future__ import annotations

import asyncio
import os
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from consumer.ledger import Database
from consumer.ledger.engine import schema
from tests.simulation.busy_life import lived
from tests.simulation.world import ReadWorld, World, played

pytestmark = pytest.mark.filterwarnings("ignore:The garbage collector is trying")  # who was killed gave nothing back

HISTORIES = int(os.environ.get("CONSUMER_TEST_HISTORIES", "10"))  # `make simulate` asks for more
PHASES = (Phase.generate,) if "CONSUMER_TEST_PLANTED" in os.environ else tuple(Phase)
SEEDS = st.integers(0, 2**32 - 1)
MOVES = st.integers(8, 20)
BOUNDS: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "derandomize": "CONSUMER_TEST_HISTORIES" not in os.environ,  # the suite plays the same ones each time
}


class Ground:
    """A ledger whose schema is there, and copies of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        asyncio.run(self._made())

    async def _made(self) -> None:
        database = Database(f"sqlite+aiosqlite:///{self._folder}/ground.db")
        await schema.upgrade(database)
        await database.stop()

    def play(self, seed: int, moves: int, kind: type[World] = World) -> list[str]:
        """One play, on a copy."""
        ledger = self._folder / f"{next(self._numbers)}.db"
        shutil.copy(self._folder / "ground.db", ledger)
        try:
            return played(seed, lived(seed, moves), f"sqlite+aiosqlite:///{ledger}", kind)
        finally:
            for file in self._folder.glob(f"{ledger.name}*"):
                file.unlink()


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("simulation"))


@settings(max_examples=4, **BOUNDS)
@given(moves=MOVES, seed=SEEDS)
def test_a_few_times(ground: Ground, moves: int, seed: int) -> None:
    # case: G1, G2, G3, G4, G5, G6, G7, G11
    note("\n".join(ground.play(seed, moves)))


@settings(max_examples=2, **BOUNDS)
@given(moves=MOVES, seed=SEEDS)
def test_a_few_times_where_sync_reads(ground: Ground, moves: int, seed: int) -> None:
    # case: B1, B5, B10, G3, G7, I15
    note("\n".join(ground.play(seed, moves, ReadWorld)))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@settings(max_examples=HISTORIES, **BOUNDS, phases=PHASES)
@given(moves=MOVES, seed=SEEDS)
def test_for_long(ground: Ground, moves: int, seed: int) -> None:
    # case: G1, G2, G3, G4, G5, G6, G7, G11
    note("\n".join(ground.play(seed, moves)))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@settings(max_examples=HISTORIES, **BOUNDS, phases=PHASES)
@given(moves=MOVES, seed=SEEDS)
def test_for_long_where_sync_reads(ground: Ground, moves: int, seed: int) -> None:
    # case: B1, B5, B10, G3, G7, I15
    note("\n".join(ground.play(seed, moves, ReadWorld)))


@pytest.mark.slow
@settings(max_examples=2, **BOUNDS, phases=(Phase.generate,))
@given(moves=MOVES, seed=SEEDS)
def test_a_seed_tells_the_same_story_each_time(ground: Ground, moves: int, seed: int) -> None:
    ground.play(seed, moves)  # what a Python process does only once (its caches are filled) is done
    assert ground.play(seed, moves) == ground.play(seed, moves)


def test_most_lives_have_something_to_lose() -> None:
    lives = [lived(seed, 8 + seed % 13) for seed in range(60)]
    assert sum(bool(life.paid_orders) for life in lives) > 45
    assert sum(bool(life.subscriptions) for life in lives) > 40
    assert sum(max(life.succeeded.values(), default=0) > 1 for life in lives) > 12, "money paid twice"
    assert sum(not life.succeeded.keys() <= life.paid_orders for life in lives) > 2, "money of nobody"
