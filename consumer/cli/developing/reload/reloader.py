"""Reloader: keeps a worker on the plugins as they were last saved.

One process serves. A second one waits, with everything imported but the plugins; at a save it loads them and says what
it found. If that can serve, it takes over: the first one finishes the runs it has in flight, and ends (the ledger keeps
the two apart, as in a rolling deploy). If it cannot, the first one goes on as if nothing had been saved.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import orjson
import structlog

from consumer.cli.bootstrap import end_by_input
from consumer.cli.developing.reload.saves import Saves
from consumer.cli.developing.reload.version import Version, version_from
from consumer.errors import SettingsError

LOAD_LIMIT_S = 30.0
RESTART_AFTER_S = 1.0
FOLLOW_EVERY_S = 0.1
LINE_MAX_BYTES = 4 * 1024 * 1024

_log = structlog.get_logger(__name__)


class Serving:
    """One process of the worker, from this side."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.version = Version()
        self.live = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls) -> Serving:
        """A process that has everything but the plugins."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "consumer.cli.developing.reload.candidate",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_MAX_BYTES,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # two saves in a second must not look like one
        )  # fmt: skip
        return cls(process)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.returncode is None

    async def load(self, order: dict[str, Any]) -> Version:
        """Have it import the plugins; what it found. One that ends, or takes too long, is refused."""
        try:
            async with asyncio.timeout(LOAD_LIMIT_S):
                self.tell(order)
                while "version" not in (answer := await self._answer()):
                    pass
                self.version = version_from(answer["version"])
        except TimeoutError:
            self._process.kill()
            self.version = Version(refused=(f"its plugins were not imported within {LOAD_LIMIT_S:g} s",))
        except EOFError:
            self.version = Version(refused=("the process ended while it imported the plugins",))
        return self.version

    def work(self) -> None:
        """Have it take part in the work."""
        self.tell({"work": True})
        self._reading = asyncio.create_task(self._read(), name=f"reload:{self._process.pid}")

    def tell(self, order: dict[str, Any]) -> None:
        """A line to it; one that has ended hears nothing."""
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(orjson.dumps(order) + b"\n")

    async def ended(self) -> None:
        """Until it has ended."""
        await self._process.wait()

    async def end(self, within_s: float) -> None:
        """Let it finish what is in flight, and end; at the limit it is killed, and its claims lapse."""
        if not await end_by_input(self._process, within_s):
            _log.warning("worker_stopped_hard", after_s=within_s)
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                if "live" in await self._answer():
                    self.live.set()
        except EOFError:
            return

    async def _answer(self) -> dict[str, Any]:
        line = await self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise EOFError
        found: dict[str, Any] = orjson.loads(line)
        return found


class Reloader:
    """`base_url`: where the simulator is, if there is one; `offset_s`: by how much its time is ahead. `drain_s`: how
    long a version that was replaced may go on with what it has in flight."""

    def __init__(self, *, base_url: str | None, offset_s: Callable[[], float], drain_s: float) -> None:
        self._base_url = base_url
        self._offset_s = offset_s
        self._drain_s = drain_s
        self._saves = Saves()
        self._serving: Serving | None = None
        self._was_live = False
        self._leaving: set[asyncio.Task[None]] = set()

    async def check(self) -> bool:
        """Whether a version of the plugins takes events now."""
        return self._serving is not None and self._serving.is_alive and self._serving.live.is_set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises SettingsError when what is set cannot be worked with from the start."""
        following = asyncio.create_task(self._follow())
        spare = await Serving.start()
        try:
            while not stop.is_set():
                spare = await self._next(spare)
                await self._until_needed(stop)
        finally:
            following.cancel()
            await spare.end(self._drain_s)
            if self._serving is not None:
                await self._serving.end(self._drain_s)
            await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _next(self, spare: Serving) -> Serving:
        """Load what is on the disk, and let it take over if it can; the next spare."""
        began = asyncio.get_running_loop().time()
        await self._saves.note()
        version = await spare.load({"base_url": self._base_url, "offset_s": self._offset_s()})
        self._saves.add(version.files)
        self._say(version)
        reasons = version.reasons_against(self._serving.version if self._serving is not None else None)
        if reasons:
            await self._refuse(spare, reasons)
        else:
            await self._take_over(spare, began)
        return await Serving.start()

    async def _take_over(self, spare: Serving, began: float) -> None:
        if self._serving is not None:
            leaving = asyncio.create_task(self._serving.end(self._drain_s))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        spare.work()
        first, self._serving = self._serving is None, spare
        ended = asyncio.create_task(spare.ended())
        live = asyncio.create_task(spare.live.wait())
        await asyncio.wait({ended, live}, return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, live):
            task.cancel()
        if spare.live.is_set():
            took_s = round(asyncio.get_running_loop().time() - began, 2)
            self._was_live = True
            _log.info("plugins_live" if first else "plugins_reloaded", took_s=took_s, plugins=_counted(spare.version))

    async def _refuse(self, spare: Serving, reasons: list[str]) -> None:
        await spare.end(self._drain_s)
        if self._serving is None and not self._was_live:
            raise SettingsError(reasons)
        for reason in reasons:
            _log.error("plugins_not_reloaded", reason=reason, until_then="the version from before this save goes on")

    async def _until_needed(self, stop: asyncio.Event) -> None:
        """Until something was saved, the worker ended by itself, or it is over."""
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(self._saves.wait())]
        serving = self._serving
        if serving is not None:
            waits.append(asyncio.create_task(serving.ended()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        if serving is not None and not serving.is_alive and not stop.is_set():
            _log.error("worker_ended", cure="it is started again")
            self._serving = None
            await asyncio.sleep(RESTART_AFTER_S)

    async def _follow(self) -> None:
        """The simulator's time may be driven: the workers' goes with it."""
        told = self._offset_s()
        while True:
            await asyncio.sleep(FOLLOW_EVERY_S)
            if self._serving is not None and self._offset_s() != told:
                told = self._offset_s()
                self._serving.tell({"offset_s": told})

    def _say(self, version: Version) -> None:
        for problem in version.problems:
            _log.error("plugin_problem", problem=problem)
        for warning in version.warnings:
            _log.warning("plugin_warning", warning=warning)


def _counted(version: Version) -> dict[str, int]:
    return {name: len(handlers) for name, handlers in version.plugins.items()}
