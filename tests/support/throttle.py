"""A process that gets a hundredth of a processor, as beside a neighbour that takes all."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import NoReturn

STOPPED_S, RUNS_S = 3.0, 0.03


async def throttle(send: Callable[[signal.Signals], None]) -> NoReturn:
    """Until cancelled; `send` sends it a signal. Whoever cancels lets it go on."""
    while True:
        send(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        send(signal.SIGCONT)
        await asyncio.sleep(RUNS_S)
