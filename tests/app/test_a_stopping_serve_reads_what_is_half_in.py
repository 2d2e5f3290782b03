"""A `serve` that stops reads on what is half in: its sender hears 200 or 503, and never that a half did not come."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from consumer.app import App
from consumer.settings import Role, load_settings
from tests.support.ports import eventually

BODY = b'{"id":"evt_1","type":"order.paid"}'
HEAD = b"POST /webhooks HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)


class Sender:
    """A connection to the public port of `app`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, app: App) -> Sender:
        assert app.public_url is not None
        host, port = app.public_url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def heard(self) -> bytes:
        """What is answered until the connection ends: the status line."""
        return (await asyncio.wait_for(self._reader.read(), 20)).split(b"\r\n")[0]

    def leave(self) -> None:
        self._writer.close()


async def is_refused(app: App) -> bool:
    try:
        (await Sender.to(app)).leave()
    except ConnectionRefusedError:
        return True
    return False


# case: I4, O8
async def test_a_stopping_serve_reads_what_is_half_in(tmp_path: Path) -> None:
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_AUTHENTICITY": "none",
        "CONSUMER_LINGER_S": "0",
        "CONSUMER_PORT": "0",
        "CONSUMER_INTERNAL_PORT": "0",
    }
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(App(load_settings(environ, Role.SERVE)))
        await app.internal()
        await app.receive()
        stop = asyncio.Event()
        running = asyncio.create_task(app.run(stop))
        await eventually(app.ready)
        body, head = [await Sender.to(app) for _ in range(2)]
        body.send(HEAD + BODY[:9])
        head.send(HEAD[:9])
        value = app.metrics.registry.get_sample_value
        await eventually(lambda: value("consumer_receive_arriving") == 1)
        stop.set()
        await asyncio.wait_for(running, 20)
        ending = asyncio.create_task(stack.aclose())
        await eventually(lambda: is_refused(app), what="the port is closed")
        head.send(HEAD[9:] + BODY)
        assert await head.heard() == b"HTTP/1.1 503 Service Unavailable"
        body.send(BODY[9:])
        assert await body.heard() == b"HTTP/1.1 200 OK"
        await asyncio.wait_for(ending, 20)
        head.leave()
        body.leave()
