"""File descriptors: whether this process may still open anything. Without one no connection is taken, and the event
loop says nothing of those that it turns away."""

from __future__ import annotations

import os
import resource

import structlog

from consumer.errors import DescriptorsUsedUp

SPARE = 16
"""Fewer than that, and the next connection to the database, the log or a sender may be refused."""

_log = structlog.get_logger(__name__)


class Descriptors:
    """A check for `Readiness`; logs once when they are used up, and when they are not any more."""

    def __init__(self) -> None:
        self._is_short = False

    async def check(self) -> bool:
        """True while at least `SPARE` are left. Raises DescriptorsUsedUp."""
        left, limit = _left(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        is_short = left < SPARE
        if is_short and not self._is_short:
            _log.error("file_descriptors_used_up", left=left, limit=limit)
        elif self._is_short and not is_short:
            _log.info("file_descriptors_left_again", left=left, limit=limit)
        self._is_short = is_short
        if is_short:
            raise DescriptorsUsedUp(left=left, limit=limit)
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
