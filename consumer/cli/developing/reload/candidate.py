"""Candidate: the worker of `dev --reload`, in a process of its own.

It is started ahead of time, with everything imported but the plugins. A line on its input says "load them"; it answers
what it found. The next line says "work"; the end of its input says "finish what is in flight, and end", so that it
never outlives who started it. Run as `python -m consumer.cli.developing.reload.candidate`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

import orjson
import structlog
import uvloop

from consumer import __version__
from consumer.app import App
from consumer.cli.bootstrap import at_sandbox
from consumer.cli.developing.reload.version import Version, version_of
from consumer.clock import SystemClock
from consumer.errors import ConsumerError, SettingsError
from consumer.runtime.forks import leave_forks_alone
from consumer.settings import Role, Settings, load_settings
from consumer.telemetry.logs import configure_logging

LOOK_EVERY_S = 0.02

_log = structlog.get_logger(__name__)


class AheadClock(SystemClock):
    """The simulator's time: the machine's, and so many seconds more, as its own process tells it."""

    def __init__(self, offset_s: float) -> None:
        self.offset_s = offset_s

    def now(self) -> datetime:
        """The simulator's wall time."""
        return super().now() + timedelta(seconds=self.offset_s)


class Candidate:
    """`told` is where its answers go."""

    def __init__(self, told: IO[bytes]) -> None:
        self._told = told
        self._orders = asyncio.StreamReader()
        self._clock = AheadClock(0.0)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Be told to load, then to work, then to end."""
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._orders), sys.stdin)
        leave_forks_alone()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        self._tell({"ready": True})
        if (order := await self._order()) is None:
            return
        self._clock.offset_s = order.get("offset_s", 0.0)
        settings = _settings(order.get("base_url"))
        async with App(settings, clock=self._clock) as app:
            self._tell({"version": asdict(await _loaded(app))})
            if await self._order() is None:
                return
            await app.work()
            following = [asyncio.create_task(self._follow()), asyncio.create_task(self._tell_when_live(app))]
            try:
                await app.run(self._stop)
            finally:
                for task in following:
                    task.cancel()

    async def _order(self) -> dict[str, Any] | None:
        """The next line, None when there will be no more."""
        line = await self._orders.readline()
        found: dict[str, Any] | None = orjson.loads(line) if line else None
        return found

    async def _follow(self) -> None:
        """The simulator's time goes on in steps; the end of the input is the end."""
        while (order := await self._order()) is not None:
            self._clock.offset_s = order.get("offset_s", self._clock.offset_s)
        self._stop.set()

    async def _tell_when_live(self, app: App) -> None:
        while True:
            if app.worker is not None and app.worker.polls:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        self._tell({"live": True})

    def _tell(self, document: dict[str, Any]) -> None:
        self._told.write(orjson.dumps(document) + b"\n")
        self._told.flush()


def _settings(base_url: str | None) -> Settings:
    """The settings of `dev`, for its worker; `base_url`: where the simulator is."""
    settings = load_settings(os.environ, Role.DEV).model_copy(update={"role": Role.WORK})
    configure_logging(
        settings.log_level, settings.log_format, who={"role": "work", "pid": os.getpid(), "version": __version__}
    )
    return settings if base_url is None else at_sandbox(settings, base_url)


async def _loaded(app: App) -> Version:
    """The plugins are imported here, and new migrations run, as at the start of `dev`."""
    before = set(sys.modules)
    registry = app.registry
    found = version_of(registry, sorted(_own_files(set(sys.modules) - before)))
    try:
        app.check_plugins()
        if not registry.broken:
            await app.upgrade()
    except SettingsError as error:
        return replace(found, refused=tuple(error.problems))
    except ConsumerError as error:
        return found if error.retryable else replace(found, refused=(error.line(),))
    except Exception as error:  # noqa: BLE001 - a migration is a plugin's own code
        return replace(found, refused=(f"the migrations cannot be run: {type(error).__name__}: {error}"[:300],))
    return found


def _own_files(modules: set[str]) -> Iterator[str]:
    """The source files of modules that are nobody else's: not the standard library's, of no installed package."""
    foreign = (*site.getsitepackages(), sysconfig.get_path("stdlib"), str(Path(__file__).parents[3]))
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and file.endswith(".py") and not file.startswith(foreign):
            yield file


async def _run(told: IO[bytes]) -> None:
    await Candidate(told).run()


def main() -> int:
    """The exit code. Whatever a plugin prints goes to stderr: stdout is for the answers."""
    for number in (signal.SIGINT, signal.SIGHUP):  # they reach every process of a terminal; the first one decides
        signal.signal(number, signal.SIG_IGN)
    told = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        uvloop.run(_run(told))
    except ConsumerError as error:
        _log.error("worker_failed", code=error.code, reason=error.sentence())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
