"""Outside: what `ctx.http` is on the workbench: it records every request and answers as it is told, 200 by default."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from consumer.testing.guard import Sent

KEY_HEADER = "idempotency-key"
SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request that a handler made. `body` is what was passed as `json` or `data`."""

    method: str
    url: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def idempotency_key(self) -> str | None:
        """The value of its `Idempotency-Key` header."""
        return next((value for name, value in self.headers.items() if name.lower() == KEY_HEADER), None)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the outside says: a status and a body, or an `error` instead of an answer."""

    status: int = 200
    body: Any = field(default_factory=dict)
    error: Exception | None = None


class Response:
    """The part of `aiohttp.ClientResponse` that handlers use."""

    def __init__(self, request: Request, answer: Answer, sent: Sent) -> None:
        self._request = request
        self._answer = answer
        self._sent = sent
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.url = URL(request.url)

    @property
    def status(self) -> int:
        """The HTTP status."""
        self._sent.is_looked_at = True
        return self._answer.status

    @property
    def ok(self) -> bool:
        """Whether it is below 400."""
        return self.status < 400

    async def json(self, **_: Any) -> Any:
        """The body."""
        return self._answer.body

    async def read(self) -> bytes:
        """The body as bytes."""
        body = self._answer.body
        return body if isinstance(body, bytes) else orjson.dumps(body)

    async def text(self) -> str:
        """The body as text."""
        return (await self.read()).decode()

    def raise_for_status(self) -> None:
        """As aiohttp does: raises ClientResponseError from 400 on."""
        if not self.ok:
            info = aiohttp.RequestInfo(self.url, self._request.method, CIMultiDictProxy(CIMultiDict()), self.url)
            raise aiohttp.ClientResponseError(info, (), status=self.status, message="answered by the workbench")

    def release(self) -> None:
        """Nothing to release."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Pending:
    """What `http.post(...)` returns: may be awaited, or entered with `async with`."""

    def __init__(self, make: Callable[[], Response]) -> None:
        self._make = make

    def __await__(self) -> Any:
        return self._made().__await__()

    async def _made(self) -> Response:
        return self._make()

    async def __aenter__(self) -> Response:
        return self._make()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Outside:
    """`requests` in the order they came; `answer` may be set to a function of the request."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda _: Answer()
        self._lock = threading.Lock()
        self._may_lose = 0
        self._lost: set[tuple[str, str, str]] = set()

    @property
    def lost(self) -> int:
        """How many answers were lost since `lose_answers`."""
        return len(self._lost)

    def lose_answers(self, at_most: int) -> None:
        """From now on a request that changes something is done and recorded, but its answer is lost the first time it
        is made: the handler gets a connection error. The same one again, whatever its headers, is answered. So many
        answers in all; 0 ends it."""
        with self._lock:
            self._may_lose = at_most
            self._lost = set()

    def request(self, method: str, url: Any, **options: Any) -> Pending:
        """As `aiohttp.ClientSession.request`."""
        body = options.get("json", options.get("data"))
        headers = {str(name): str(value) for name, value in (options.get("headers") or {}).items()}
        full = URL(str(url)).update_query(options["params"]) if options.get("params") else URL(str(url))
        request = Request(method=method.upper(), url=str(full), body=body, headers=headers)
        sent = Sent(request.method, request.url)

        def make() -> Response:
            sent.is_sent = True
            with self._lock:
                self.requests.append(request)
                is_lost = self._loses(request)
            if is_lost:
                raise aiohttp.ServerDisconnectedError("the answer was lost")
            answer = self.answer(request)
            if answer.error is not None:
                raise answer.error
            sent.status = answer.status
            response = Response(request, answer, sent)
            if options.get("raise_for_status"):
                response.raise_for_status()
            return response

        return Pending(make)

    def _loses(self, request: Request) -> bool:
        same = (request.method, request.url, _text(request.body))
        if request.method in SAFE or same in self._lost or len(self._lost) >= self._may_lose:
            return False
        self._lost.add(same)
        return True

    def get(self, url: Any, **options: Any) -> Pending:
        """As `aiohttp.ClientSession.get`."""
        return self.request("GET", url, **options)

    def post(self, url: Any, **options: Any) -> Pending:
        """As `aiohttp.ClientSession.post`."""
        return self.request("POST", url, **options)

    def put(self, url: Any, **options: Any) -> Pending:
        """As `aiohttp.ClientSession.put`."""
        return self.request("PUT", url, **options)

    def patch(self, url: Any, **options: Any) -> Pending:
        """As `aiohttp.ClientSession.patch`."""
        return self.request("PATCH", url, **options)

    def delete(self, url: Any, **options: Any) -> Pending:
        """As `aiohttp.ClientSession.delete`."""
        return self.request("DELETE", url, **options)

    def effects(self) -> list[tuple[str, str, str]]:
        """What the outside did, as a system does that honours the key: a request repeated with its key counts once,
        and so does a PUT or DELETE of the same; anything else counts every time. (method, url, key or body)."""
        seen: set[tuple[str, str, str]] = set()
        found = []
        for request in self.requests:
            if request.method in SAFE:
                continue
            key = request.idempotency_key
            effect = (request.method, request.url, key if key is not None else _text(request.body))
            repeats = key is not None or request.method in ("PUT", "DELETE")
            if not (repeats and effect in seen):
                found.append(effect)
            seen.add(effect)
        return found

    def final(self) -> dict[str, str]:
        """The last body that was PUT (or that it was deleted), per address: what the outside holds in the end."""
        held: dict[str, str] = {}
        for request in self.requests:
            if request.method in ("PUT", "DELETE"):
                held[request.url] = _text(request.body) if request.method == "PUT" else "deleted"
        return held


def _text(body: Any) -> str:
    if isinstance(body, bytes | str):
        return body if isinstance(body, str) else body.decode("utf-8", "replace")
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS, default=str).decode()
