"""Lifetime: what a process runs and listens on, on one exit stack: what began last ends first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final

import structlog
from aiohttp import web

from consumer.clock import is_set_within
from consumer.errors import BrokerError, LedgerError, PortTaken
from consumer.telemetry.logs import Condition
from consumer.telemetry.port import site_of, url_of

LOOK_AGAIN_S: Final = 2.0

Stoppable = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
Awaited = Callable[[asyncio.Event], Coroutine[Any, Any, bool]]

_log = structlog.get_logger(__name__)


class Lifetime:
    """What ends with the process. `stack`: where anything else is put that is to end in its order."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, part: Stoppable, name: str, limit_s: float, *, after: Awaited | None = None) -> None:
        """Run something that ends cleanly when its event is set, at most `limit_s` seconds later. `after`: what it
        waits for before; it says False when told to stop first."""
        stop = asyncio.Event()
        task = asyncio.create_task(_until_told(part, stop, after), name=f"app:{name}")
        self._tasks.append(task)

        async def end() -> None:
            stop.set()
            _, late = await asyncio.wait({task}, timeout=limit_s)
            if late:
                _log.warning("part_stopped_hard", part=name, after_s=limit_s)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.stack.push_async_callback(end)

    async def listen(self, runner: web.BaseRunner, host: str, port: int, *, shares_port: bool = False) -> str:
        """Serve at this address; returns its URL. Raises PortTaken."""
        await runner.setup()
        self.stack.push_async_callback(runner.cleanup)
        try:
            await site_of(runner, host, port, shares_port=shares_port).start()
        except OSError as error:
            raise PortTaken(host=host, port=port, reason=error.strerror) from error
        return url_of(host, runner.addresses[0][1])

    async def ended(self, stop: asyncio.Event) -> Collection[asyncio.Task[None]]:
        """Wait until `stop` is set, or what is run ends by itself, which is returned then."""
        stopping = asyncio.create_task(stop.wait(), name="app:stop")
        try:
            done, _ = await asyncio.wait({stopping, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        return [task for task in self._tasks if task in done]


async def _until_told(part: Stoppable, stop: asyncio.Event, after: Awaited | None) -> None:
    """A part that ends before it was told to has failed, even if it says nothing."""
    if after is None or await after(stop):
        await part(stop)
    if not stop.is_set():
        raise RuntimeError("a part of the process ended by itself")


async def persist(attempt: Callable[[], Awaitable[None]], away: Condition, stop: asyncio.Event) -> bool:
    """Try until it works (True) or `stop` is set (False). What trying again cannot help is raised. Several parts wait
    for the same: `away` is theirs together, and says it once."""
    while not stop.is_set():
        try:
            await attempt()
        except (BrokerError, LedgerError) as error:
            if not error.retryable:
                raise
            away.lasts(error)
            await is_set_within(stop, LOOK_AGAIN_S)
        else:
            away.over()
            return True
    return False


async def first_of(wanted: asyncio.Event, stop: asyncio.Event) -> bool:
    """Wait until `wanted` (True), or `stop` (False)."""
    waits = {asyncio.create_task(wanted.wait()), asyncio.create_task(stop.wait())}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return wanted.is_set() and not stop.is_set()
