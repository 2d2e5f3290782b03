"""A sender of webhooks that come one by one at their times, whether the ones before were answered or not."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from tests.bench.receive.client import LIMIT_S, Answers, raw
from tests.support.load import Sending

CONNECTIONS = 64


class Steady:
    """Sends each at its time over a free connection; when there is none it waits, and that counts."""

    def __init__(self, port: int, sendings: Sequence[Sending], rate: float) -> None:
        self._port, self._rate = port, rate
        self._requests = [raw(port, sending) for sending in sendings]
        self._free: list[_Connection] = []
        self._late: deque[tuple[bytes, float]] = deque()
        self._took_s: list[float] = []
        self._done = asyncio.Event()
        self._began = 0.0

    def due_s(self, number: int) -> float:
        """The time of the request of this number, by `time.perf_counter`."""
        return self._began + number / self._rate

    async def sent(self) -> list[float]:
        """Seconds from each one's time until its answer. Raises RuntimeError when one is not 200."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LIMIT_S):
            for _ in range(CONNECTIONS):
                made = await loop.create_connection(partial(_Connection, self._answered), "127.0.0.1", self._port)
                self._free.append(made[1])
            self._began = time.perf_counter()
            for number, request in enumerate(self._requests):
                due = self.due_s(number)
                if (early := due - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                if self._free:
                    self._free.pop().send(request, due)
                else:
                    self._late.append((request, due))
            await self._done.wait()
        for connection in self._free:
            connection.close()
        return self._took_s

    def _answered(self, connection: _Connection, took_s: float) -> None:
        self._took_s.append(took_s)
        if self._late:
            connection.send(*self._late.popleft())
        else:
            self._free.append(connection)
        if len(self._took_s) == len(self._requests):
            self._done.set()


class _Connection(asyncio.Protocol):
    def __init__(self, answered: Callable[[_Connection, float], None]) -> None:
        self._answered = answered
        self._transport: asyncio.Transport | None = None
        self._answers = Answers()
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes, due: float) -> None:
        """One that was due then."""
        assert self._transport is not None
        self._due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if (status := self._answers.status(data)) is None:
            return
        if status != 200:
            raise RuntimeError(f"a webhook was answered {status}")
        self._answered(self, time.perf_counter() - self._due)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()
