"""At half load: how long a webhook waits for its 200 while half as many come as one process can take, one by one at
their times, whether the ones before were answered or not. Beside it the bare aiohttp handler at the same rate, which
shows what the machine and the sender take of it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import cast

import uvloop

from tests.bench.ratio import Bound, Measured
from tests.bench.receive.client import LIMIT_S, Answers, raw, send_all
from tests.bench.receive.servers import Server, ours_and_bare
from tests.support.load import Sending, paid_orders

REQUESTS, CONNECTIONS, ROUNDS = 12_000, 64, 5
LASTS_S = 3.0
MOST_MS = 5.0


def measure(folder: Path, kafka_url: str) -> list[Measured]:
    """The highest rate first, by the clock; then rounds of ours and the bare one in turn."""
    sendings = paid_orders(REQUESTS, 0)
    with ours_and_bare(folder, kafka_url) as (ours, bare):
        full = median(_rate(ours, sendings) for _ in range(ROUNDS))
        some = sendings[: int(full / 2 * LASTS_S)]
        rounds = [[_p99_ms(one, some, full / 2) for one in (ours, bare)] for _ in range(ROUNDS)]
    ours_ms, bare_ms = (median(one) for one in zip(*rounds, strict=True))
    sys.stdout.write(f"receive, half load ({full / 2:.0f}/s): p99 {ours_ms:.1f} ms, bare {bare_ms:.1f} ms\n")
    return [Bound(f"receive: p99 at half load, {full / 2:.0f}/s", ours_ms, MOST_MS, "ms")]


def _rate(server: Server, sendings: Sequence[Sending]) -> float:
    began_s = time.perf_counter()
    uvloop.run(send_all(server.port, sendings, CONNECTIONS))
    return len(sendings) / (time.perf_counter() - began_s)


def _p99_ms(server: Server, sendings: Sequence[Sending], rate: float) -> float:
    return quantiles(uvloop.run(_Steady(server.port, sendings, rate).sent()), n=100)[98] * 1_000


class _Steady:
    """Sends each at its time over a free connection; when there is none it waits, and that counts."""

    def __init__(self, port: int, sendings: Sequence[Sending], rate: float) -> None:
        self._port, self._rate = port, rate
        self._requests = [raw(port, sending) for sending in sendings]
        self._free: list[_Connection] = []
        self._late: deque[tuple[bytes, float]] = deque()
        self._took_s: list[float] = []
        self._done = asyncio.Event()

    async def sent(self) -> list[float]:
        """Seconds from each one's time until its answer. Raises RuntimeError when one is not 200."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LIMIT_S):
            for _ in range(CONNECTIONS):
                made = await loop.create_connection(partial(_Connection, self._answered), "127.0.0.1", self._port)
                self._free.append(made[1])
            began = time.perf_counter()
            for number, request in enumerate(self._requests):
                if (early := began + number / self._rate - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                now = time.perf_counter()
                if self._free:
                    self._free.pop().send(request, now)
                else:
                    self._late.append((request, now))
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
