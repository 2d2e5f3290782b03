"""Port: what the public and the internal port share below any route. No answer names the software behind it, and a
request that is no HTTP gets one fixed answer: aiohttp's own page would give the sender's bytes back (case I10)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import Any

import orjson
import structlog
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import _ErrInfo

log = structlog.get_logger(__name__)

UNREAD_MAX_BYTES = 64 * 1024
UNREAD_WITHIN_S = 30.0
"""How long the other end may read nothing while there is something for it. Linux counts that, and ends the connection:
closed, it would stay for ever, with megabytes of answers."""
HEAD_WITHIN_S = 10.0
"""How long a connection to the internal port may take for its first request."""
KEPT_OPEN_S = 130.0
"""How long one that says nothing more stays open there: longer than a proxy before the pages keeps it, or a button is
now and then pressed on one that we close. aiohttp's own is an hour."""
QUEUED_MAX = 2
"""So many requests of a connection may wait behind the one that is answered until no more is read of it: nobody counts
what their bodies hold. aiohttp's own limit is 32, of half a megabyte each."""
EVERY_ADDRESS = "::"
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refusal = Callable[[web.BaseRequest, int, BaseException | None], web.StreamResponse]


class PreparedResponse(web.StreamResponse):
    """A response that is bytes already, and the same object for every request. aiohttp's own one builds each head
    anew, which costs more than checking a signature, and names aiohttp in it."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, *, keep_alive: bool) -> None:
        super().__init__(status=status)
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            *(f"{name}: {text}" for name, text in headers.items()),
        ]
        lines += [f"Content-Length: {len(body)}"] + ([] if keep_alive else ["Connection: close"])
        self._start_of_message = "\r\n".join(lines).encode() + b"\r\nDate: "
        self._message_body = body
        self._keeps = keep_alive

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open after this response."""
        return self._keeps

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send it to who asked, as `send` does."""
        self.send(request.transport, is_head=request.method == "HEAD")
        return None

    def send(self, transport: asyncio.Transport | None, *, is_head: bool = False) -> None:
        """Send it. Raises ConnectionResetError when the sender went away or does not read its answers."""
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the sender is gone")
        if transport.get_write_buffer_size() > UNREAD_MAX_BYTES:
            transport.abort()
            raise ConnectionResetError("the sender does not read its answers")
        body = b"" if is_head else self._message_body
        transport.write(b"%b%b\r\n\r\n%b" % (self._start_of_message, _date(int(time())), body))

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to send."""


def _bound_unread(transport: asyncio.BaseTransport) -> None:
    end = transport.get_extra_info("socket")
    if end is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        with suppress(OSError):  # it may be gone again
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_WITHIN_S * 1000))


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    """The time of day as HTTP writes it, made once a second."""
    return formatdate(second, usegmt=True).encode()


def site_of(runner: web.BaseRunner, host: str, port: int, *, shares_port: bool = False) -> web.BaseSite:
    """Where `runner` will listen; `shares_port`: beside others that share it, too. `::` is every address of this
    machine, as an image's own health check (127.0.0.1) and a cluster of both families expect: asyncio would take IPv6
    alone. Raises OSError where the port is taken; the site's `start` does so, too."""
    if host == EVERY_ADDRESS and socket.has_dualstack_ipv6():
        end = socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True, reuse_port=shares_port)
        return web.SockSite(runner, end)
    return web.TCPSite(runner, host, port, reuse_port=shares_port or None)


def url_of(host: str, port: int) -> str:
    """The address of such a site, as a program types it."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Connection(web.RequestHandler):
    """One connection. What aiohttp would answer with a page of its own is answered by `refusal`. One that brings no
    request within `head_timeout_s` (None: no limit) is closed: who opens many and says nothing holds few."""

    __slots__ = ("_head_limit", "_head_timeout_s", "_refusal")

    def __init__(
        self, manager: web.Server, refusal: Refusal, head_timeout_s: float | None = None, **options: Any
    ) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._refusal = refusal
        self._head_timeout_s = head_timeout_s
        self._head_limit: asyncio.TimerHandle | None = None
        self._max_msg_queue_size, self._msg_queue_resume_size = QUEUED_MAX, QUEUED_MAX - 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins."""
        super().connection_made(transport)
        _bound_unread(transport)
        if self._head_timeout_s is not None:
            self._head_limit = self._loop.call_later(self._head_timeout_s, self._end_without_a_head)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is over."""
        if self._head_limit is not None:
            self._head_limit.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came. Some break the parser, where aiohttp expects no error."""
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 - whatever a stranger's bytes do to it
            self._break_off(error)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def start(self) -> None:
        """aiohttp's task, for as long as the connection lasts. Some heads that it parses it cannot make a request of (a
        host in the address that is none): its task ends of that, and the connection would stay for ever, unanswered."""
        try:
            await super().start()
        except Exception as error:  # noqa: BLE001 - whatever a stranger's bytes do to it
            if self._manager is not None:
                self._messages.clear()  # what came behind it is not answered in its place
                self._break_off(error)
                await super().start()

    def _break_off(self, error: Exception) -> None:
        """They are no HTTP (case I10): that is answered next, and nothing behind them is read. Where it was memory that
        is missing, the fault is ours, and the sender may try again."""
        self._close = True
        is_ours = isinstance(error, MemoryError)
        status = HTTPStatus.INTERNAL_SERVER_ERROR if is_ours else HTTPStatus.BAD_REQUEST
        self._messages.append((_ErrInfo(status, error, ""), EMPTY_PAYLOAD))

    def _end_without_a_head(self) -> None:
        if not self._request_count:  # aiohttp's own count of the heads it has read
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's signature
    ) -> web.StreamResponse:
        """The answer to bytes that are no request (400), and to a handler that raised. Nothing of `message` is used:
        it holds what the sender wrote. Raises ConnectionError when an answer has begun already."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        return self._refusal(request, status, exc)


class Server(web.Server):
    """A server of such connections. `options` are those of `web.RequestHandler`."""

    def __init__(self, handler: Handler, refusal: Refusal, **options: Any) -> None:
        self._refusal = refusal
        self._options = {"access_log": None, **options}
        factory = self._options.pop("request_factory", None)
        super().__init__(handler, request_factory=factory)
        self._make = self.request_factory
        self.request_factory = self._request

    def _request(self, message: RawRequestMessage, *arguments: Any) -> web.BaseRequest:
        """A request as aiohttp makes it. One that came in chunks is its connection's last: the fields behind its last
        chunk would be headers of the next one, which may be another sender's where a proxy shares its connections."""
        return self._make(message._replace(should_close=True) if message.chunked else message, *arguments)

    def __call__(self) -> Connection:
        """A new connection's protocol."""
        return Connection(self, self._refusal, **self._options)


class InternalRunner(web.AppRunner):
    """Serves an application on the internal port: no header `Server`, and every failure is a small JSON answer. Bodies
    stay as sent: a megabyte that unpacks to gigabytes would hold up the loop, and with it the role's own work, whatever
    address it is sent to."""

    def __init__(self, app: web.Application) -> None:
        super().__init__(app, access_log=None, handle_signals=False)
        app.on_response_prepare.append(_unnamed)

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return Server(
            made.request_handler,
            _refused,
            request_factory=made.request_factory,
            head_timeout_s=HEAD_WITHIN_S,
            keepalive_timeout=KEPT_OPEN_S,
            auto_decompress=False,
        )


async def _unnamed(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.pop("Server", None)


def _refused(_: web.BaseRequest, status: int, error: BaseException | None) -> web.StreamResponse:
    if status == HTTPStatus.BAD_REQUEST:
        log.info("internal_request_malformed", reason=type(error).__name__)
        return _MALFORMED
    log.error("internal_request_failed", error=type(error).__name__, exc_info=error)
    return _FAILED


def _answer(status: int, code: str, message: str) -> PreparedResponse:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    body = orjson.dumps({"error": {"code": code, "message": message}})
    return PreparedResponse(status, headers, body, keep_alive=False)


_MALFORMED = _answer(400, "malformed", "the request is malformed or its head is too large")
_FAILED = _answer(500, "internal_error", "something went wrong here; the log says what")
