"""Replaying: how long live orders wait while `replay apply` does 20,000 events and is killed six times, against how
long they wait without it; and whether each event was done once (cases R7, R8)."""

from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path

from tests.bench.ratio import Ratio
from tests.support.handling.beside_live import p99, replayed_beside_live

EVENTS, KILLS, BEFORE = 20_000, 6, 200
REST_S = 20.0
"""Longer than a killed process holds its lease."""
AT_MOST = 2.0


def measure(folder: Path) -> list[Ratio]:
    """One round, which takes minutes: with and without it in turn. As rates, so that what waits longer is less."""
    place = folder / uuid.uuid4().hex
    place.mkdir()
    found = asyncio.run(replayed_beside_live(place, count=EVENTS, kills=KILLS, before=BEFORE, rest_s=REST_S))
    sys.stderr.write(f"{found}\n")
    if problem := found.problem(EVENTS):
        raise RuntimeError(problem)
    rounds = [(1 / p99(found.during), 1 / p99(found.without))]
    return [Ratio(f"live orders, p99 beside a replay of {EVENTS}", "p99 without it", rounds, 1 / AT_MOST)]
