"""A load generator that costs less than a server: prepared requests, written raw."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import cast

from tests.support.load import Sending

LIMIT_S = 120.0


class Answers:
    """The answers of one connection, one after the other."""

    def __init__(self) -> None:
        self._buffer = b""

    def status(self, data: bytes) -> int | None:
        """The status of the answer that this completes, if it does."""
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return None
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(rest) < length:
            return None
        self._buffer = rest[length:]
        return int(head.split(b" ", 2)[1])


class Client(asyncio.Protocol):
    """One connection that sends prepared requests one after the other. Raw, so that it costs less than a server."""

    def __init__(self, requests: list[bytes], done: asyncio.Event) -> None:
        self._requests = requests
        self._done = done
        self._transport: asyncio.Transport | None = None
        self._answers = Answers()
        self.refused = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, of the same shape
        self._next()

    def data_received(self, data: bytes) -> None:
        if (status := self._answers.status(data)) is not None:
            self.refused += status != 200
            self._next()

    def _next(self) -> None:
        assert self._transport is not None
        if self._requests:
            self._transport.write(self._requests.pop())
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._done.set()


async def send_all(port: int, sendings: Sequence[Sending], connections: int) -> None:
    """Send all over so many connections; bounded in count and time. Raises RuntimeError unless all get 200."""
    queue = [raw(port, sending) for sending in sendings]
    clients: list[Client] = []
    ends: list[asyncio.Event] = []
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LIMIT_S):
        for _ in range(connections):
            end = asyncio.Event()
            _, client = await loop.create_connection(partial(Client, queue, end), "127.0.0.1", port)
            clients.append(client)
            ends.append(end)
        for end in ends:
            await end.wait()
    refused = sum(client.refused for client in clients)
    if refused:
        raise RuntimeError(f"{refused} of {len(sendings)} requests were not answered 200")


def raw(port: int, sending: Sending) -> bytes:
    """A request as it goes over the wire."""
    headers = "".join(f"{name}: {value}\r\n" for name, value in sending.headers.items())
    start = f"POST /webhooks/default HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}"
    return f"{start}Content-Length: {len(sending.body)}\r\n\r\n".encode() + sending.body
