"""A process that gets little: a hundredth of a processor, as beside a neighbour that takes all; no larger a file."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

STOPPED_S, RUNS_S = 3.0, 0.03


async def throttle(send: Callable[[signal.Signals], None]) -> NoReturn:
    """Until cancelled; `send` sends it a signal. Whoever cancels lets it go on."""
    while True:
        send(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        send(signal.SIGCONT)
        await asyncio.sleep(RUNS_S)


@contextmanager
def no_file_beyond(size_bytes: int) -> Iterator[None]:
    """This process can write no file further than that: SQLite calls it an I/O error, as of a disk that fails."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
