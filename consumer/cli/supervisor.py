"""Supervisor: `serve --processes N`, for a machine with several cores. Each has a port of its own for health and
metrics, and all listen on the one public port: the kernel gives each new connection to one of them (SO_REUSEPORT).

They live and die together. One that ends by itself, or answers nothing any more, ends the others, as it would end
alone: whoever restarts this process restarts them all. One that is killed leaves none behind: they end with their
input.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import aiohttp
import orjson
import structlog

from consumer.cli.bootstrap import end_by_input, stop_on_signals, tell
from consumer.cli.output import Output
from consumer.errors import PortTaken, ProcessEnded, SettingsError
from consumer.settings import Settings

SLACK_S: Final = 10.0
ASK_EVERY_S: Final = 5.0
HANGS_S: Final = 20.0
PORT_MAX: Final = 65_535

_log = structlog.get_logger(__name__)


class ServeProcess:
    """One of them, from this side."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, port: int, internal_port: int) -> ServeProcess:
        """On this public port, beside the others."""
        ports = {"CONSUMER_PORT": str(port), "CONSUMER_INTERNAL_PORT": str(internal_port)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "consumer", "serve", "--beside", "--json",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, **ports},
            start_new_session=True,  # Ctrl-C is for the first process, which ends the others
        )  # fmt: skip
        return cls(process)

    async def announced(self) -> dict[str, Any]:
        """Where it listens. Raises ProcessEnded."""
        told = b""
        while line := await self._process.stdout.readline() if self._process.stdout is not None else b"":
            told += line
            if line == b"}\n":
                found: dict[str, Any] = orjson.loads(told)
                return found
        return await self.ended()

    async def ended(self) -> dict[str, Any]:
        """Wait until it ends. Raises ProcessEnded then."""
        raise ProcessEnded(pid=self._process.pid, exit_code=await self._process.wait())

    async def hangs(self, url: str) -> None:
        """Wait until it answers nothing for HANGS_S: probes see one of the processes, and the kernel gives each its
        part. Raises ProcessEnded then."""
        heard_s = time.monotonic()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_EVERY_S)) as http:
            while time.monotonic() - heard_s < HANGS_S:
                await asyncio.sleep(ASK_EVERY_S)
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with http.get(url + "/healthz"):
                        heard_s = time.monotonic()
        raise ProcessEnded(pid=self._process.pid, reason=f"it answers nothing for {HANGS_S:g} s")

    async def end(self, within_s: float) -> None:
        """Let it answer what is in flight, and end; at the limit it is killed."""
        if not await end_by_input(self._process, within_s):
            _log.warning("process_stopped_hard", after_s=within_s)


async def serve_many(settings: Settings, output: Output, count: int) -> None:
    """Run so many until a signal, or until one of them ends. Raises SettingsError, PortTaken, ProcessEnded."""
    _require_ports(settings, count)
    stop = stop_on_signals()
    processes: list[ServeProcess] = []
    with reserved(settings.host, settings.port) as port:
        try:
            for number in range(count):
                internal = settings.internal_port + number if settings.internal_port else 0
                processes.append(await ServeProcess.start(port, internal))
            await _until(stop, _serving(processes, output))
        finally:
            within_s = settings.linger_s + settings.drain_s + SLACK_S
            await asyncio.gather(*(process.end(within_s) for process in processes))


def _require_ports(settings: Settings, count: int) -> None:
    """Raises SettingsError: the internal ports of the others are nobody's setting, and each would refuse its own."""
    last = settings.internal_port + count - 1
    if settings.internal_port and last > PORT_MAX:
        raise SettingsError(
            [f"CONSUMER_INTERNAL_PORT: the last of {count} processes would have {last}, beyond {PORT_MAX}"]
        )
    if settings.internal_port and settings.internal_port < settings.port <= last:
        raise SettingsError(
            [f"CONSUMER_INTERNAL_PORT: those of {count} processes, up to {last}, include CONSUMER_PORT"]
        )


async def _serving(processes: Sequence[ServeProcess], output: Output) -> None:
    async with asyncio.TaskGroup() as group:
        told = [group.create_task(process.announced()) for process in processes]
    found = [task.result() for task in told]
    addresses = {"role": "serve", "public_url": found[0]["public_url"]}
    internal = [one["internal_url"] for one in found]
    lines = [f"{name}: {value}" for name, value in addresses.items()]
    tell(output, {**addresses, "internal_urls": internal}, [*lines, *(f"internal_url: {url}" for url in internal)])
    async with asyncio.TaskGroup() as group:
        for process, url in zip(processes, internal, strict=True):
            group.create_task(process.ended())
            group.create_task(process.hangs(url))


async def _until(stop: asyncio.Event, serving: Any) -> None:
    """Until told to stop, or the first failure, which is raised."""
    tasks = [asyncio.create_task(stop.wait()), asyncio.create_task(serving)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            await tasks[1]
    except ExceptionGroup as group:  # not `except*`: before 3.11.4 that wraps what is raised here
        raise group.exceptions[0] from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """The port, which only those who share it may have meanwhile; a free one for 0. Raises PortTaken: also where others
    share it, for they would get a part of our webhooks; and for a host that nobody knows."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise PortTaken(host=host, port=port, reason=error.strerror) from error
    with socket.socket(family) as alone, socket.socket(family) as shared:
        try:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            alone.close()
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            shared.bind(address)
        except OSError as error:
            raise PortTaken(host=host, port=port, reason=error.strerror) from error
        yield int(shared.getsockname()[1])
