"""Service: the sandbox's engine behind a session without a network. Its life is over when a play begins, and is shown
little by little: what has not been shown yet, no read finds."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any
from urllib.parse import unquote

import aiohttp
from yarl import URL

from consumer.events import Delivery
from consumer.sandbox.api.endpoints import ENDPOINTS, Call, Endpoint, answer_text
from consumer.sandbox.engine.events import public_id
from consumer.sandbox.engine.records import Event, Record
from consumer.sandbox.engine.shelf import Shelf
from consumer.sandbox.errors import Refusal, problem_body
from consumer.sandbox.webhooks.envelopes import body_bytes, envelope
from tests.promises.lives import Life

TIMEOUT_S = 10.0


@dataclass
class Response:
    """An answer, as aiohttp's. It is its own content."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> Response:
        """What is read of it."""
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        """All of it at once."""
        yield self.body


class Service:
    """In the place of an `aiohttp.ClientSession`. `trouble`: the share of requests that get no proper answer."""

    auto_decompress = False

    def __init__(self, life: Life, application: str, random: Random) -> None:
        self.trouble = 0.0
        self._engine = life.engine
        self._application = application
        self._random = random
        self._shown_to: datetime = life.engine.world.started_at
        world: Any = life.engine.world
        world.seen = self._seen  # in the place of its lag, which is one number

    @property
    def credentials(self) -> tuple[str, str]:
        """App id and secret."""
        return self._engine.config.app_id, self._engine.config.app_secret

    @property
    def events(self) -> list[Event]:
        """All that happens, in its order."""
        return sorted(self._engine.world.events, key=lambda one: one.seq)

    def show(self, event: Event | None = None) -> None:
        """From now on reads show what was up to this event; without one, everything."""
        self._shown_to = self._engine.clock.now() if event is None else event.created_at

    def webhook(self, event: Event, number: int, received_at: datetime) -> Delivery:
        """As `serve` hands it on."""
        raw = body_bytes(envelope(self._engine, event))
        return Delivery(
            application=self._application,
            id=f"dlv_{number}",
            raw=raw,
            received_at=received_at,
            event_id=public_id(event),
        )

    def forged(self, number: int, received_at: datetime) -> Delivery:
        """A stranger says that something which happened has happened once more."""
        body = envelope(self._engine, self._random.choice(self.events), sent_id=f"evt_forged{number}")
        return Delivery(
            application=self._application, id=f"dlv_{number}", raw=body_bytes(body), received_at=received_at,
            event_id=body["id"],
        )  # fmt: skip

    def _seen(self, shelf: Shelf[Any], record_id: str | None) -> Record | None:
        found: Record | None = shelf.as_of(record_id or "", self._shown_to)
        return found

    # --- as a session ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def request(self, method: str, url: URL, **_: Any) -> AsyncIterator[Response]:
        """An answer, after a while, or what comes instead of one."""
        await asyncio.sleep(self._random.uniform(0, 0.05))
        fault = self._random.choice(FAULTS) if self._random.random() < self.trouble else None
        answer = await fault() if fault is not None else self._answered(method, url)
        await asyncio.sleep(self._random.uniform(0, 0.05))
        yield answer

    def _answered(self, method: str, url: URL) -> Response:
        for endpoint in ENDPOINTS:
            found = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", endpoint.path), url.raw_path)
            if found is not None and endpoint.method == method:
                path = {name: unquote(value) for name, value in found.groupdict().items()}
                call = Call(self._engine, self._engine.application, str, path, dict(url.query))
                return _run(endpoint, call)
        raise AssertionError(f"{method} {url} is none of the service's")

    async def close(self) -> None:
        """It belongs to nobody."""


def _run(endpoint: Endpoint, call: Call) -> Response:
    try:
        answer = endpoint.run(call)
    except Refusal as refusal:
        status = refusal.problem.status
        problem = problem_body(refusal.problem_code, status, refusal.message, "req_1", refusal.field)
        return Response(status, json.dumps(problem).encode())
    return Response(answer.status, answer_text(answer).encode())


async def _too_many() -> Response:
    return Response(429, b'{"statusCode":429,"code":"rate_limited","message":"slowly"}', {"Retry-After": "2"})


async def _broken() -> Response:
    return Response(500, b'{"statusCode":500,"code":"internal_error","message":"sorry"}')


async def _page() -> Response:
    return Response(502, b"<html><h1>Bad Gateway</h1></html>")


async def _cut_short() -> Response:
    return Response(200, b'{"items":[{"id":"ev')


async def _lost() -> Response:
    raise aiohttp.ServerDisconnectedError


async def _silent() -> Response:
    await asyncio.sleep(TIMEOUT_S)
    raise TimeoutError


FAULTS: tuple[Callable[[], Awaitable[Response]], ...] = (_too_many, _broken, _page, _cut_short, _lost, _silent)
