"""Strangers: what anybody could send to a webhook address. `python -m tests.hostile.strangers ADDRESS` sends it.

Six kinds in turn, evenly over the time: bodies that come a byte at a time, heads that never end, bodies over the
limit, compressed ones (bombs, and JSON that unpacks to much), forged events, and small ones with large headers. To the
loopback only; bounded in count, time and connections. A process of its own, so that it holds up nobody whose times are
measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import orjson

PER_MINUTE_MAX = 20_000
SECONDS_MAX = 3_600
CONNECTIONS_MAX = 4_000
GIVEN_UP_S = 120.0
SLOW_BYTES = 2_000
HEAD = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BOMB = gzip.compress(b"\0" * 2**26, 9)
MEMBERS = gzip.compress(b" ") * 3_000


class Stranger:
    """Sends to one address. `answers` counts what came back: a status, `cut` without one, `unreached`."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.hostname != "127.0.0.1" or parts.port is None:
            raise ValueError("load goes to the loopback only")
        self._port = parts.port
        self._head = HEAD % parts.path.encode()
        self._number = itertools.count()
        self.answers: Counter[str] = Counter()

    async def send(self, kind: str, number: int) -> None:
        """One request of this kind; bounded in time."""
        try:
            async with asyncio.timeout(GIVEN_UP_S), self._connected() as (reader, writer):
                sending = asyncio.ensure_future(getattr(self, f"_{kind}")(writer, number))
                try:
                    answer = await reader.read(12)
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
            told = answer[9:12].decode(errors="replace") or "cut"
        except TimeoutError:
            told = "held"
        except (ConnectionResetError, BrokenPipeError):
            told = "cut"
        except OSError:
            told = "unreached"
        self.answers[f"{kind} {told}"] += 1

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _slow(self, writer: asyncio.StreamWriter, _: int) -> None:
        writer.write(self._head + b"Content-Length: %d\r\n\r\n" % SLOW_BYTES)
        for _ in range(SLOW_BYTES):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.25)

    async def _half_open(self, writer: asyncio.StreamWriter, number: int) -> None:
        """Half of a head, or none at all."""
        writer.write(self._head if number % 2 else b"")

    async def _oversize(self, writer: asyncio.StreamWriter, number: int) -> None:
        """A length over the limit, or a body that says none and does not end."""
        if number % 2:
            writer.write(self._head + b"Content-Length: %d\r\n\r\n" % 2**21 + b" " * 2**16)
            return
        writer.write(self._head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(24):
            writer.write(b"%x\r\n%b\r\n" % (2**16, b" " * 2**16))
            await writer.drain()

    async def _compressed(self, writer: asyncio.StreamWriter, number: int) -> None:
        """A bomb, many members, or an event that unpacks to nearly the limit."""
        event = {"id": f"evt_packed_{os.getpid()}_{number}", "type": "order.paid", "pad": "0" * 900_000}
        body = (BOMB, MEMBERS, gzip.compress(orjson.dumps(event), 1))[number % 3]
        writer.write(self._head + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async def _forged(self, writer: asyncio.StreamWriter, number: int) -> None:
        """An event that nobody made, with or without the look of a signature, or no JSON."""
        order = {"id": f"ord_{number}", "order_id": f"forged-{number}", "status": "PAID", "note": os.urandom(400).hex()}
        event = {"id": f"evt_forged_{os.getpid()}_{number}", "type": "order.paid", "data": {"object": order}}
        body = orjson.dumps(event) if number % 3 else os.urandom(2_000)
        signed = b"webhook-id: 1\r\nwebhook-timestamp: %d\r\nwebhook-signature: v1,Zm9yZ2Vk\r\n" % time.time()
        writer.write(self._head + (signed if number % 2 else b"") + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async def _stuffed(self, writer: asyncio.StreamWriter, number: int) -> None:
        """An event of few bytes under headers of many, each of a name that is kept."""
        body = orjson.dumps({"id": f"evt_stuffed_{os.getpid()}_{number}"})
        headers = b"".join(b"webhook-x-%d: %b\r\n" % (one, b'"' * 512) for one in range(24))
        writer.write(self._head + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()


KINDS = ("slow", "half_open", "oversize", "compressed", "forged", "stuffed")


async def load(address: str, *, per_minute: int, seconds: float) -> Counter[str]:
    """So many requests a minute for so long, whatever is answered; says what was."""
    stranger = Stranger(address)
    began, number = time.monotonic(), 0
    async with asyncio.TaskGroup() as group:
        while (passed := time.monotonic() - began) < seconds:
            while number < passed * per_minute / 60:
                if len(asyncio.all_tasks()) < CONNECTIONS_MAX:
                    group.create_task(stranger.send(KINDS[number % len(KINDS)], number // len(KINDS)))
                else:
                    stranger.answers["not sent"] += 1
                number += 1
            await asyncio.sleep(0.02)
    return stranger.answers


def main() -> int:
    """Send, and print what was answered as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.strangers", description=__doc__)
    parser.add_argument("address", help="http://127.0.0.1:PORT/webhooks/NAME")
    parser.add_argument("--per-minute", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    asked = parser.parse_args()
    if not 0 < asked.per_minute <= PER_MINUTE_MAX or not 0 < asked.seconds <= SECONDS_MAX:
        parser.error(f"at most {PER_MINUTE_MAX} a minute, {SECONDS_MAX} s")
    answers = asyncio.run(load(asked.address, per_minute=asked.per_minute, seconds=asked.seconds))
    json.dump(dict(sorted(answers.items())), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
