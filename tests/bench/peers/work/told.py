"""What a peer says when it has done its share. It runs in an environment of its own, so nothing of ours is imported."""

from __future__ import annotations

import json
import sys
import time


class Clock:
    """Begins when it is made: after the imports and the joining of a group, at the first message at the latest."""

    def __init__(self) -> None:
        self._began_s, self._cpu_s = time.perf_counter(), time.process_time()

    def tell(self) -> None:
        """CPU seconds of this process, all its threads, and seconds by the clock, as one line of stdout."""
        took = {"cpu_s": time.process_time() - self._cpu_s, "wall_s": time.perf_counter() - self._began_s}
        sys.stdout.write(f"{json.dumps(took)}\n")


async def effect() -> None:
    """The merchant's."""
