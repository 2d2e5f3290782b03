"""`make faults`: every row on real processes, one after the other. Writes the table of tests/README.md; exit 1
when a fault is not noticed, not named truly, or not green again.

`python -m tests.faults WORD …` plays the rows whose name has one of these words, `--on embedded` or `--on servers`
those of one scene, `--new` those that are not in the table; what was played before stays there. `--times N` plays each
so often, one after the other. `--healthy MINUTES` plays no fault: it counts the alarms that `status` raises all the
same, exit 1 when there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.faults.healthy import stay_healthy
from tests.faults.play import Played, on_files, on_servers, play
from tests.faults.rows.every import EMBEDDED, SERVERS
from tests.faults.scene import Fault, Scene
from tests.faults.table import keep, keep_pairs, line, noticed_s

SCENES = {"embedded": (on_files, EMBEDDED), "servers": (on_servers, SERVERS)}
REASON_CHARS = 900


async def play_all(on: str, rows: Sequence[Fault]) -> int:
    """How many failed. One scene serves row after row, until one fails: what it left would spoil the next."""
    failed, left = 0, list(rows)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            made: AbstractAsyncContextManager[Scene] = SCENES[on][0](Path(folder))
            async with made as scene:
                while left:
                    fault = left.pop(0)
                    played = await _played(fault, scene)
                    if played is None:
                        failed += 1
                        break
                    keep(played)
                    print(line(played), flush=True)
    return failed


async def _played(fault: Fault, scene: Scene) -> Played | None:
    try:
        return await play(fault, scene)
    except (AssertionError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        why = f"{error} {error.__cause__ or ''}"[:REASON_CHARS]
        print(f"FAILED on {scene.name}: {fault.name}: {type(error).__name__}: {why}", flush=True)
        for role, process in scene.processes.items():
            print(f"    {role}: {process.log[-600:]}".replace("\n", "\n        "), flush=True)
        return None


async def stay(on: str, minutes: float, per_s: float) -> int:
    """How many false alarms."""
    with tempfile.TemporaryDirectory() as folder:
        made: AbstractAsyncContextManager[Scene] = SCENES[on][0](Path(folder))
        async with made as scene:
            told = await stay_healthy(scene, minutes, per_s)
    print(told.row, flush=True)
    return told.alarms.total()


def main(words: Sequence[str]) -> int:
    """Play; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--on", choices=sorted(SCENES))
    parser.add_argument("--new", action="store_true", help="only what is not in the table")
    parser.add_argument("--times", type=int, default=1, help="play each so often")
    parser.add_argument("--pairs", action="store_true", help="play nothing: write which rows play which pair")
    parser.add_argument("--healthy", type=float, metavar="MINUTES")
    parser.add_argument("--per-s", type=float, default=1.0, help="orders a second, with --healthy")
    asked = parser.parse_args(words)
    failed = 0
    if asked.pairs:
        keep_pairs()
        return 0
    if asked.healthy is not None:
        return 1 if asyncio.run(stay(asked.on or "embedded", asked.healthy, asked.per_s)) else 0
    chosen = {on: _chosen(on, asked.words) for on in SCENES if asked.on in (None, on)}
    if not any(chosen.values()):
        parser.error(f"no row has {' or '.join(asked.words)} in its name")
    for on, rows in chosen.items():
        left = [row for row in rows if not (asked.new and noticed_s(row.name, on) is not None)]
        failed += asyncio.run(play_all(on, [row for row in left for _ in range(asked.times)]))
    return 1 if failed else 0


def _chosen(on: str, words: Sequence[str]) -> list[Fault]:
    """Rows of a scene that have one of the words in their name; all, without words."""
    return [row for row in SCENES[on][1] if not words or any(word in row.name for word in words)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
