"""Response: what a handler gets of `ctx.http`, as `aiohttp.ClientResponse` is where handlers use it."""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import suppress
from email.message import Message
from http import HTTPStatus
from types import TracebackType
from typing import Any, NoReturn, Self

import aiohttp
import orjson
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from consumer.errors import HandlerMisuse
from consumer.testing.guard import Sent
from consumer.testing.outside.answer import Answer, Request

JSON = "application/json"
BODILESS = (204, 304)
PHRASES = {known.value: known.phrase for known in HTTPStatus}


class NotPlayed(HandlerMisuse, AttributeError):
    """The handler uses a part of aiohttp that the kit does not play."""

    code = "not_played"


def not_played(real: type[Any], name: str, instead: str) -> NoReturn:
    """Raise NotPlayed for what the real class has, AttributeError for what it has not either."""
    if name.startswith("__") or not hasattr(real, name):
        raise AttributeError(f"{real.__name__!r} object has no attribute {name!r}")
    raise NotPlayed(f"the test kit does not play {real.__name__}.{name}: {instead}")


class Response:
    """An answer. Its body is there at once, and may be read as often as one likes."""

    def __init__(self, request: Request, answer: Answer, sent: Sent) -> None:
        self._sent = sent
        self._status = answer.status
        body = _raw(answer.body)
        headers = CIMultiDict(answer.headers)
        headers.setdefault("Content-Type", _content_type(answer.body))
        if answer.status not in BODILESS:
            headers.setdefault("Content-Length", str(len(body)))
        self._raw = b"" if answer.status in BODILESS or request.method == "HEAD" else body
        self.headers: CIMultiDictProxy[str] = CIMultiDictProxy(headers)
        self.method = request.method
        self.url = self.real_url = URL(request.url)
        self.host = self.url.host
        self.history: tuple[Any, ...] = ()
        self.closed = False
        self.content = Content(self._raw)
        self.request_info = aiohttp.RequestInfo(
            self.url, request.method, CIMultiDictProxy(CIMultiDict(request.headers)), self.url
        )

    @property
    def status(self) -> int:
        """The HTTP status."""
        self._sent.is_looked_at = True
        return self._status

    @property
    def ok(self) -> bool:
        """Whether it is below 400."""
        return self.status < 400

    @property
    def reason(self) -> str:
        """The status in words."""
        return PHRASES.get(self._status, "")

    @property
    def content_type(self) -> str:
        """Of the header, without its parameters."""
        return self._described().get_content_type()

    @property
    def charset(self) -> str | None:
        """Of the header."""
        return self._described().get_content_charset()

    @property
    def content_length(self) -> int | None:
        """In bytes, as the header says."""
        told = self.headers.get("Content-Length")
        return None if told is None else int(told)

    def _described(self) -> Message:
        found = Message()
        found["Content-Type"] = self.headers["Content-Type"]
        return found

    def get_encoding(self) -> str:
        """Of the header; UTF-8 without, or with one that nobody knows."""
        with suppress(LookupError):
            return codecs.lookup(self.charset or "utf-8").name
        return "utf-8"

    async def read(self) -> bytes:
        """The body as bytes."""
        return self._raw

    async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
        """The body as text."""
        return self._raw.decode(encoding or self.get_encoding(), errors)

    async def json(
        self,
        *,
        encoding: str | None = None,
        loads: Callable[[str], Any] = json.loads,
        content_type: str | None = JSON,
    ) -> Any:
        """The body read as JSON. As aiohttp does: raises ContentTypeError when the answer calls it something else."""
        told, header = self.content_type, self.headers["Content-Type"]
        is_json = told == JSON or (told.startswith("application/") and told.endswith("+json"))
        if content_type and not (is_json if content_type == JSON else content_type in told):
            raise aiohttp.ContentTypeError(
                self.request_info, self.history, status=self._status,
                message=f"Attempt to decode JSON with unexpected mimetype: {header}", headers=self.headers,
            )  # fmt: skip
        text = (await self.text(encoding)).strip()
        return loads(text) if text else None

    def raise_for_status(self) -> None:
        """As aiohttp does: raises ClientResponseError from 400 on."""
        if not self.ok:
            raise aiohttp.ClientResponseError(
                self.request_info, self.history, status=self._status, message=self.reason, headers=self.headers
            )

    def release(self) -> Any:
        """As aiohttp does: may be awaited, or not."""
        self.closed = True
        return _Nothing()

    def close(self) -> None:
        """The answer is not wanted any more."""
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> NoReturn:
        not_played(aiohttp.ClientResponse, name, "use status, headers, read, text, json or content")


class Content:
    """The body as a stream."""

    def __init__(self, raw: bytes) -> None:
        self._left = raw

    async def read(self, n: int = -1) -> bytes:
        """At most so many bytes; all of it when negative."""
        size = len(self._left) if n < 0 else n
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    async def readline(self) -> bytes:
        """Up to the next line's end."""
        line, end, _ = self._left.partition(b"\n")
        return await self.read(len(line + end))

    def at_eof(self) -> bool:
        """Whether nothing is left."""
        return not self._left

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        """In pieces of so many bytes."""
        while self._left:
            yield await self.read(n)

    async def iter_any(self) -> AsyncIterator[bytes]:
        """In pieces as they come: here, one."""
        if self._left:
            yield await self.read()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._left:
            yield await self.readline()

    def __getattr__(self, name: str) -> NoReturn:
        not_played(aiohttp.StreamReader, name, "use read, readline, iter_chunked or iter_any")


class Pending(Coroutine[Any, Any, Response]):
    """What `http.post(...)` returns: may be awaited, made a task of (`TaskGroup`, `gather`), or entered with `async
    with`. Nothing is sent before."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Response]]) -> None:
        self._make = make
        self._made: Coroutine[Any, Any, Response] | None = None
        self._response: Response | None = None

    def _work(self) -> Coroutine[Any, Any, Response]:
        self._made = self._made or self._make()
        return self._made

    def send(self, value: Any) -> Any:
        """As a coroutine does."""
        return self._work().send(value)

    def throw(self, *error: Any) -> Any:
        """As a coroutine does."""
        return self._work().throw(*error)

    def close(self) -> None:
        """As a coroutine does."""
        if self._made is not None:
            self._made.close()

    def __await__(self) -> Generator[Any, Any, Response]:
        return self._work().__await__()

    async def __aenter__(self) -> Response:
        self._response = await self._work()
        return self._response

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._response is not None:
            self._response.close()


class _Nothing:
    def __await__(self) -> Generator[None, None, None]:
        return
        yield


def _raw(body: Any) -> bytes:
    if isinstance(body, str):
        return body.encode()
    return bytes(body) if isinstance(body, bytes | bytearray) else orjson.dumps(body)


def _content_type(body: Any) -> str:
    if isinstance(body, str):
        return "text/plain; charset=utf-8"
    return "application/octet-stream" if isinstance(body, bytes | bytearray) else JSON
