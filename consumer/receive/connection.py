"""Connection: a webhook that came whole, on a connection that has nothing else to do, is answered from where it was
read. All others go aiohttp's way, which makes a request, a writer and two more steps of a task for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from consumer.receive.admission import USUAL_BYTES
from consumer.telemetry.port import Connection, PreparedResponse, Server

Whole = Callable[[Mapping[str, str], bytes], Awaitable[PreparedResponse]]
"""Answers a request by its headers and its body. Never raises, but for cancellation."""
Takes = Callable[[RawRequestMessage], Whole | None]
"""Who answers this request if all of it is here; None: it goes aiohttp's way."""


class WebhookConnection(Connection):
    """One connection. aiohttp's task waits for `_waiter` until there is a request for it: it is not woken before we
    know whose the request is, nor while we answer one. What comes meanwhile is queued, as ever. It is idle from the
    start, not from that task's first step on: most webhooks come with their connection."""

    __slots__ = ("_answering", "_begins", "_takes")

    def __init__(self, manager: web.Server, takes: Takes, *arguments: Any, **options: Any) -> None:
        super().__init__(manager, *arguments, **options)
        self._takes = takes
        self._answering: asyncio.Task[None] | None = None
        self._begins = self._loop.create_future()
        self._waiter = self._begins

    async def start(self) -> None:
        """aiohttp's task, see `web.RequestHandler`, from the first request that is for it."""
        try:
            await self._begins
        finally:
            self._waiter = None
        await super().start()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        idle = self._waiter
        if idle is None or idle.done():
            super().data_received(data)
            return
        self._waiter = None
        super().data_received(data)
        whole = self._whole(*self._messages[0]) if self._messages else None
        if whole is None or self._parser is None:
            self._wait(idle)
            return
        self._messages.popleft()
        self._parser.message_consumed()
        self._answering = self._loop.create_task(self._answer(idle, *whole))

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        """See `web.RequestHandler`: what is answered then is waited for, and given up after `timeout` seconds."""
        await super().shutdown(timeout)
        if self._answering is not None:
            self._answering.cancel()

    def _whole(self, message: object, payload: StreamReader) -> tuple[Whole, Mapping[str, str], bytes] | None:
        """Who answers this request, by what, if all of it is here. What ends the connection goes aiohttp's way, and so
        does what has no body: none was sent, or of a length that no parser counts to."""
        if not isinstance(message, RawRequestMessage) or message.should_close or message.upgrade or message.chunked:
            return None
        if message.version < HttpVersion11 or payload is EMPTY_PAYLOAD:
            return None
        if not payload.is_eof() or payload.exception() is not None:
            return None
        if (whole := self._takes(message)) is None:
            return None
        return whole, message.headers, self._body(payload)

    def _body(self, payload: StreamReader) -> bytes:
        """Its body. Reading it as a stream has the parser look again for what it held back: nothing, where a body of
        usual size came in one piece, and no other request with it."""
        is_alone = len(self._messages) == 1
        if is_alone and payload.total_bytes <= USUAL_BYTES and len(payload._buffer) == 1:
            return payload._buffer[0]
        return payload.read_nowait()

    async def _answer(self, idle: asyncio.Future[None], whole: Whole, headers: Mapping[str, str], body: bytes) -> None:
        keeps = False
        try:
            answer = await whole(headers, body)
            answer.send(self.transport)
            keeps = answer.keep_alive
        except ConnectionResetError:
            keeps = False  # nobody is there to hear it
        finally:
            self._end(idle, keeps=keeps)

    def _end(self, idle: asyncio.Future[None], *, keeps: bool) -> None:
        """What aiohttp does after an answer: the connection ends, and its task with it, or waits for more."""
        self._answering = None
        if not keeps or idle.done() or self._close or self._force_close:
            idle.cancel()
            self.force_close()
            return
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(self._next_keepalive_close_time, self._process_keepalive)
        self._wait(idle)

    def _wait(self, idle: asyncio.Future[None]) -> None:
        """aiohttp's task has what there is for it, or waits."""
        self._waiter = idle
        if self._messages:
            idle.set_result(None)


class WebhookServer(Server):
    """A server of such connections."""

    def __init__(self, takes: Takes, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._takes = takes

    def __call__(self) -> Connection:
        """A new connection's protocol."""
        return WebhookConnection(self, self._takes, self._refusal, **self._options)
