"""File descriptors: whether this process may still open anything. Without one no connection is taken, and the event
loop says nothing of those that it turns away."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable

from consumer.errors import DescriptorsUsedUp
from consumer.telemetry.logs import Condition

SPARE = 16
"""Fewer than that, and the next connection to the database, the log or a sender may be refused."""


class Descriptors:
    """A check for `Readiness`; says while they are used up, and when they are not any more."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._used_up = Condition("file_descriptors_used_up", level="error", monotonic=monotonic)

    async def check(self) -> bool:
        """True while at least `SPARE` are left. Raises DescriptorsUsedUp."""
        left, limit = _left(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if left < SPARE:
            self._used_up.lasts(DescriptorsUsedUp.code, left=left, limit=limit)
            raise DescriptorsUsedUp(left=left, limit=limit)
        self._used_up.over(left=left, limit=limit)
        return True


def _left() -> int:
    """How many may still be opened, up to `SPARE`; found by trying, since the list of open ones is long and not
    everywhere."""
    tried: list[int] = []
    try:
        while len(tried) < SPARE:
            tried.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        pass  # EMFILE, or the whole machine's ENFILE: that is the answer
    finally:
        for one in tried:
            os.close(one)
    return len(tried)
