"""A TCP proxy on the loopback: passes bytes on, slowly or not at all, as a test asks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType


class TcpProxy:
    """Listens on `port` and passes bytes to and from `target_port`, or a socket's path.

    `delay_s` holds every piece coming back from the target for that long; `blocked` holds it until unblocked;
    `refuse()` closes all connections and stops to listen, `accept()` listens again on the same port.
    """

    def __init__(self, target_port: int | Path, *, port: int = 0) -> None:
        self.target_port = target_port
        self.port = port
        self.delay_s = 0.0
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> TcpProxy:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()

    def block(self) -> None:
        """Hold back whatever the target answers."""
        self._open.clear()

    def unblock(self) -> None:
        """Let it pass again."""
        self._open.set()

    async def accept(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Close every connection and refuse new ones."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        target: asyncio.StreamWriter | None = None
        try:
            answers, target = await self._reach()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, target, held=False))
                group.create_task(self._pass(answers, writer, held=True))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for end in (writer, target):
                if end is not None:
                    end.close()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.target_port, Path):
            return await asyncio.open_unix_connection(self.target_port)
        return await asyncio.open_connection("127.0.0.1", self.target_port)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, held: bool) -> None:
        while piece := await source.read(65_536):
            if held:
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
            sink.write(piece)
            await sink.drain()
        raise ConnectionResetError("the other side closed")
