"""Outside: the session that handlers get as `ctx.http`."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NoReturn

import aiohttp
import orjson
from yarl import URL

from consumer.events import Event
from consumer.plugin.http import WHY, loses_the_body
from consumer.testing.guard import Sent
from consumer.testing.outside.answer import Answer, Request, Trouble
from consumer.testing.outside.bodies import recorded
from consumer.testing.outside.response import Pending, Response, not_played

SAFE = ("GET", "HEAD", "OPTIONS")
INSTEAD = (
    "request, get, options, head, post, put, patch and delete are there; for more use a client of the handler's own, "
    "allowed by name (Workbench(allow=[...])), on a server that the test starts"
)


class Outside:
    """`requests` in the order they came; `answer` may be set to a function of the request."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda _: Answer()
        self._lock = threading.Lock()
        self._told: list[tuple[Request, Event | None]] = []
        self._event: Event | None = None
        self._trouble: Trouble | None = None
        self._met: list[tuple[str, str, str]] = []

    @property
    def met(self) -> list[str]:
        """The requests that met trouble since `begin_trouble`."""
        return [f"{method} {url}" for method, url, _ in self._met]

    def begin_event(self, event: Event) -> None:
        """From now on a handler works on this event."""
        with self._lock:
            self._event = event

    @property
    def closed(self) -> bool:
        """Never: the session is the worker's."""
        return False

    def begin_trouble(self, trouble: Trouble | None) -> None:
        """From now on a request that changes something meets this trouble; None ends it."""
        with self._lock:
            self._trouble = trouble
            self._met = []

    def request(self, method: str, url: Any, **options: Any) -> Pending:
        """As `aiohttp.ClientSession.request`. Raises TypeError for an option that it has not."""
        unknown = sorted(set(options) - _options())
        if unknown:
            raise TypeError(f"ClientSession._request() got an unexpected keyword argument {unknown[0]!r}")
        if options.get("json") is not None and options.get("data") is not None:
            raise ValueError("data and json parameters can not be used at the same time")
        address = URL(url) if isinstance(url, str) else url
        if options.get("params"):
            address = address.extend_query(options["params"])
        sent = Sent(method.upper(), str(address))

        async def make() -> Response:
            sent.is_sent = True
            if not address.absolute:
                raise aiohttp.InvalidUrlClientError(address)
            if address.scheme not in ("http", "https"):
                raise aiohttp.NonHttpUrlClientError(address)
            body = options["json"] if options.get("json") is not None else await recorded(options.get("data"))
            request = Request(method=method.upper(), url=str(address), body=body, headers=_headers(options))
            return await self._answered(request, sent, options)

        return Pending(make)

    async def _answered(self, request: Request, sent: Sent, options: Mapping[str, Any]) -> Response:
        with self._lock:
            instead = self._instead(request)
            if instead is None or (self._trouble is not None and self._trouble.is_done):
                self.requests.append(request)
                self._told.append((request, self._event))
        answer = instead or self.answer(request)
        if answer.error is not None:
            raise answer.error
        sent.status = answer.status
        response = Response(request, answer, sent)
        is_sent_on = "Location" in response.headers and options.get("allow_redirects", True)
        if is_sent_on and loses_the_body(request.method, answer.status):
            raise aiohttp.ClientResponseError(
                response.request_info, response.history, status=answer.status, message=WHY.format(method=request.method)
            )
        check = options.get("raise_for_status")
        if callable(check):
            await check(response)
        elif check:
            response.raise_for_status()
        return response

    def _instead(self, request: Request) -> Answer | None:
        """What it gets in place of its answer, where it meets trouble."""
        trouble = self._trouble
        if trouble is None or request.method in SAFE:
            return None
        same = (request.method, request.url, _text(request.body))
        if trouble.at_most is not None and (same in self._met or len(self._met) >= trouble.at_most):
            return None
        instead = trouble.instead(request)
        if instead is not None:
            self._met.append(same)
        return instead

    def get(self, url: Any, **options: Any) -> Pending:
        """As `aiohttp.ClientSession.get`."""
        return self.request("GET", url, **options)

    def options(self, url: Any, **options: Any) -> Pending:
        """As `aiohttp.ClientSession.options`."""
        return self.request("OPTIONS", url, **options)

    def head(self, url: Any, **options: Any) -> Pending:
        """As `aiohttp.ClientSession.head`."""
        return self.request("HEAD", url, **options)

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

    def __getattr__(self, name: str) -> NoReturn:
        not_played(aiohttp.ClientSession, name, INSTEAD)

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

    def mixed_up(self) -> tuple[str, str, str] | None:
        """The first key under which one host was asked for two things, and both. It takes the second for the first, as
        is meant where two events of one type tell the same of an order."""
        held: dict[tuple[str, str], list[tuple[str, Event | None]]] = {}
        for request, event in self._told:
            key = request.idempotency_key
            if key is None or request.method in SAFE:
                continue
            asked = f"{request.method} {request.url} {_text(request.body)}"
            earlier = held.setdefault((str(URL(request.url).origin()), key), [])
            for before, of in earlier:
                if before != asked and not _says_again(of, event):
                    return key, before, asked
            earlier.append((asked, event))
        return None

    def final(self) -> dict[str, str]:
        """The last body that was PUT (or that it was deleted), per address: what the outside holds in the end, where a
        request repeated with its key is not done again."""
        held: dict[str, str] = {}
        seen: set[tuple[str, str, str]] = set()
        for request in self.requests:
            if request.method not in ("PUT", "DELETE"):
                continue
            if request.idempotency_key is not None:
                if (same := (request.method, request.url, request.idempotency_key)) in seen:
                    continue
                seen.add(same)
            held[request.url] = _text(request.body) if request.method == "PUT" else "deleted"
        return held


def _says_again(one: Event | None, other: Event | None) -> bool:
    """Whether two events tell the same of an order. A subscription, or a customer, is told the same month by month."""
    if one is None or other is None or one.id == other.id or not one.key.startswith("order:"):
        return False
    return (one.application, one.type, one.key) == (other.application, other.type, other.key)


@cache
def _options() -> frozenset[str]:
    """What the real session takes."""
    parameters = inspect.signature(aiohttp.ClientSession._request).parameters.values()
    return frozenset(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)


def _headers(options: Mapping[str, Any]) -> dict[str, str]:
    given = options.get("headers") or {}
    pairs: Iterable[Any] = given.items() if isinstance(given, Mapping) else given
    found = {str(name): str(value) for name, value in pairs}
    if options.get("auth") is not None:
        found.setdefault("Authorization", options["auth"].encode())
    return found


def _text(body: Any) -> str:
    if isinstance(body, bytes | str):
        return body if isinstance(body, str) else body.decode("utf-8", "replace")
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS, default=_plain).decode()


def _plain(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
