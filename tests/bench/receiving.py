"""Receiving: `consumer serve` (signature, Kafka, acks=all) against a bare aiohttp handler that only reads the body.

Requests per second of one core: the requests answered, by the processor time the server's process took for them. The
load generator, Kafka and the server share two cores here, and wall time would measure who got how much of them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvloop

from tests.bench.ratio import Ratio
from tests.support.load import SECRET, Sending, paid_orders
from tests.support.process import ConsumerProcess, ended

REQUESTS = 6_000
CONNECTIONS = 64
ROUNDS = 7
BAR = 0.6
LIMIT_S = 120.0

BARE = """
import os, sys, uvloop
from aiohttp import web

async def read(request):
    await request.read()
    return web.Response(body=b'{"status":"accepted"}', content_type="application/json")

async def main():
    app = web.Application()
    app.router.add_post("/webhooks/{application}", read)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    import asyncio
    await asyncio.Event().wait()

uvloop.run(main())
"""


def measure(folder: Path, kafka_url: str) -> Ratio:
    """Alternate between the two servers; each is kept to the first core, load and broker have the rest."""
    sendings = paid_orders(REQUESTS, 0)
    environ = {
        "CONSUMER_BROKER_URL": kafka_url,
        "CONSUMER_TOPIC_PREFIX": f"bench-{uuid.uuid4().hex[:8]}",
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
    }
    serve = ConsumerProcess("serve", environ, folder)
    bare = subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE)
    try:
        with ended(serve):
            serve.spawn()
            asyncio.run(serve.ready())
            assert bare.stdout is not None
            bare_port = int(bare.stdout.readline())
            ours_port = urlsplit(serve.addresses["public_url"]).port or 0
            _pin(serve.pid, bare.pid)
            rounds = []
            for number in range(ROUNDS + 1):
                ours = _per_core_second(serve.pid, ours_port, sendings)
                baseline = _per_core_second(bare.pid, bare_port, sendings)
                if number:  # the first round warms up
                    rounds.append((ours, baseline))
    finally:
        bare.terminate()
        bare.wait(10)
    return Ratio("receive: signature, Kafka, acks=all", "a bare aiohttp handler that only reads the body", rounds, BAR)


def _per_core_second(pid: int, port: int, sendings: Sequence[Sending]) -> float:
    before = _processor_s(pid)
    uvloop.run(_send_all(port, sendings))
    return len(sendings) / (_processor_s(pid) - before)


def _processor_s(pid: int) -> float:
    """Seconds of processor time a process has taken, its threads and the kernel's work for it included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pin(*processes: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        for process in processes:
            os.sched_setaffinity(process, {cores[0]})
        os.sched_setaffinity(0, set(cores[1:]))


class _Client(asyncio.Protocol):
    """One connection that sends prepared requests one after the other. Raw, so that it costs less than a server."""

    def __init__(self, requests: list[bytes], done: asyncio.Event) -> None:
        self._requests = requests
        self._done = done
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self.refused = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, of the same shape
        self._next()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(rest) < length:
            return
        self.refused += not head.startswith(b"HTTP/1.1 200")
        self._buffer = rest[length:]
        self._next()

    def _next(self) -> None:
        assert self._transport is not None
        if self._requests:
            self._transport.write(self._requests.pop())
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._done.set()


async def _send_all(port: int, sendings: Sequence[Sending]) -> None:
    """Send all over CONNECTIONS connections; bounded in count and time. Raises RuntimeError unless all get 200."""
    queue = [_raw(port, sending) for sending in sendings]
    clients: list[_Client] = []
    ends: list[asyncio.Event] = []
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LIMIT_S):
        for _ in range(CONNECTIONS):
            end = asyncio.Event()
            _, client = await loop.create_connection(partial(_Client, queue, end), "127.0.0.1", port)
            clients.append(client)
            ends.append(end)
        for end in ends:
            await end.wait()
    refused = sum(client.refused for client in clients)
    if refused:
        raise RuntimeError(f"{refused} of {len(sendings)} requests were not answered 200")


def _raw(port: int, sending: Sending) -> bytes:
    headers = "".join(f"{name}: {value}\r\n" for name, value in sending.headers.items())
    start = f"POST /webhooks/default HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}"
    return f"{start}Content-Length: {len(sending.body)}\r\n\r\n".encode() + sending.body
