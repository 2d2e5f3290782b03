"""`make faults`: every row on real processes, one after the other; prints the table for tests/README.md, exit 1 when
one is not noticed, not named truly, or not green again. `python -m tests.faults NAME …` plays those rows alone."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.faults.play import play
from tests.faults.rows import EMBEDDED

HEAD = "| fault (embedded) | not green after s | named after s | by | green after its cure, s |\n|---|---|---|---|---|"


def main(wanted: list[str]) -> int:
    """Play them; the exit code."""
    failed = 0
    print(HEAD, flush=True)
    for fault in EMBEDDED:
        if wanted and fault.name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(asyncio.run(play(fault, Path(folder))).row, flush=True)
            except (AssertionError, RuntimeError) as error:
                failed += 1
                print(f"| {fault.name} | FAILED: {str(error)[:300]} {error.__cause__!s:.600} | | | |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
