"""`make drills`: each alert fired by its real fault, cured as its runbook says; prints a table, exit 1 when one is not
as it should be. `python -m tests.drills NAME …` plays those drills alone."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import yaml

from tests.drills.drills import DRILLS
from tests.drills.play import play, scene
from tests.drills.rules import RULES, SPEED

HEAD = "| fault | alerts | all fire after s | silent and healthy after its cure, s |\n|---|---|---|---|"


def main(wanted: list[str]) -> int:
    """Play them, each in a deployment of its own; the exit code."""
    failed = 0
    print(f"Times in the rules are divided by {SPEED}.\n\n{HEAD}", flush=True)
    for drill in DRILLS:
        if wanted and drill.name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(asyncio.run(_played(drill.name, Path(folder))), flush=True)
            except (AssertionError, RuntimeError) as error:
                failed += 1
                print(f"| {drill.name} | FAILED: {str(error)[:300]} {error.__cause__!s:.600} | | |", flush=True)
    drilled = {name for drill in DRILLS for name in drill.alerts}
    print(f"\nNot drilled yet: {', '.join(sorted(alerts() - drilled))}.")
    return 1 if failed else 0


async def _played(name: str, folder: Path) -> str:
    [drill] = [one for one in DRILLS if one.name == name]
    async with scene(folder) as here:
        return (await play(drill, here)).row


def alerts() -> set[str]:
    """The names of all alerts."""
    groups = yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
