"""`make drills`: no alert fires where nothing is wrong, and each by its real fault, cured as its runbook says; prints a
table, exit 1 when one is not as it should be. `python -m tests.drills NAME …` plays those alone, in this order; exit 2
for a name of none."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from consumer.errors import ConsumerError
from tests.drills.drills import DRILLS
from tests.drills.play import NOTHING, places, play, scene, stay_silent
from tests.drills.rules import FOR_MOST_S, QUIET_SPEED, SPEED
from tests.drills.scene import Drill
from tests.support.kafka import KafkaMissing

HEAD = "| fault | alerts | all fire after s | silent and healthy after its cure, s |\n|---|---|---|---|"


def main(wanted: list[str]) -> int:
    """Play them, each in a deployment of its own; the exit code."""
    known: dict[str, Drill | None] = {NOTHING: None, **{drill.name: drill for drill in DRILLS}}
    if unknown := [name for name in wanted if name not in known]:
        print(f"error[usage]: no such drill: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    failed = 0
    print(f"Times in the rules are divided by {SPEED}, at most {FOR_MOST_S} s are waited.\n\n{HEAD}", flush=True)
    for name in wanted or known:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(asyncio.run(_played(known[name], Path(folder))), flush=True)
            except (AssertionError, RuntimeError, ConsumerError, KafkaMissing, subprocess.TimeoutExpired) as error:
                failed += 1
                print(
                    f"| {name} | FAILED: {str(error)[:200]} … {str(error)[-600:]} {error.__cause__!s:.600} | | |",
                    flush=True,
                )
    return 1 if failed else 0


async def _played(drill: Drill | None, folder: Path) -> str:
    if drill is None:
        async with scene(folder, speed=QUIET_SPEED) as here:
            return await stay_silent(here)
    with places(drill, folder) as where:
        async with scene(folder, drill.settings, places=where) as here:
            return (await play(drill, here)).row


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # told to end, it ends what it started
    sys.exit(main(sys.argv[1:]))
