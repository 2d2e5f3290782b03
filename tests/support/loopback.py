"""Loopback: an HTTP server of a test on a free port, for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from aiohttp import web


class LoopbackServer:
    """`async with`: every request goes to `answer`; `url` is where it listens, with `path` behind it."""

    def __init__(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], path: str = "/") -> None:
        self._answer = answer
        self._path = path
        self._runner: web.ServerRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}{self._path}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
