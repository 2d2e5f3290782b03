"""A scripted payments service on loopback, clocks that cost no time, and a client wired to both."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from aiohttp import web

from consumer.clock import DrivenClock
from consumer.payments import Attempt, Budget, CircuitState, Credentials, IdempotencyKeys, PaymentsClient, Priority

APP_ID = "svc_app_tests"
SECRET = "svc_sk_live_first"
OTHER_SECRET = "svc_sk_live_second"
START = datetime(2026, 1, 1, tzinfo=UTC)


class InstantClock:
    """A clock whose sleeps take no real time: they move it. For one caller at a time."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed_s)

    def monotonic(self) -> float:
        return self.elapsed_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.elapsed_s += max(seconds, 0.0)
        await asyncio.sleep(0)


class TurnClock(DrivenClock):
    """A driven clock that moves to the next sleeper when all tasks wait for it. For tasks that do no I/O."""

    async def run(self, *tasks: asyncio.Task[Any], seconds: float) -> None:
        """Let the tasks run for that many seconds of this clock, or until all of them are done."""
        end = self.monotonic() + seconds
        while not all(task.done() for task in tasks):
            for _ in range(8 + 4 * len(tasks)):
                await asyncio.sleep(0)
            if not self._sleepers:
                continue
            next_at = min(at for at, _ in self._sleepers)
            if next_at > end:
                break
            self.advance(max(0.0, next_at - self.monotonic()))


@dataclass(frozen=True)
class Reply:
    """One scripted answer. `body` is sent as JSON unless it is bytes; `cut` drops the connection instead."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hang: bool = False


def error_reply(status: int, code: str, *, retry_after: str | None = None, **more: Any) -> Reply:
    """An error answer in the documented shape."""
    body = {"statusCode": status, "error": "Error", "code": code, "message": f"text of {code}", "request_id": "req_1"}
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Reply(status, body | more, headers)


UNAUTHORIZED = error_reply(401, "invalid_api_credentials")


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def secret(self) -> str:
        pair = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        return pair.partition(":")[2]

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


Answering = Callable[[Seen], Reply | Awaitable[Reply]]


class ScriptedService:
    """Answers from a list, one reply a request, or by a function; keeps what it was asked."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.script: list[Reply] = []
        self.answering: Answering | None = None
        self.asked = asyncio.Event()
        self.base_url = ""

    def will(self, *replies: Reply) -> None:
        """Answer the next requests with these."""
        self.script.extend(replies)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(
            request.method,
            request.raw_path.partition("?")[0],
            dict(request.query),
            dict(request.headers),
            await request.read(),
        )
        self.seen.append(seen)
        self.asked.set()
        reply = self._reply(seen)
        if not isinstance(reply, Reply):
            reply = await reply
        if reply.hang:
            await asyncio.sleep(30)
        if reply.cut or reply.hang:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        body = reply.body if isinstance(reply.body, bytes) else orjson.dumps(reply.body)
        return web.Response(
            status=reply.status, body=body, headers={"Content-Type": "application/json"} | reply.headers
        )

    def _reply(self, seen: Seen) -> Reply | Awaitable[Reply]:
        if self.script:
            return self.script.pop(0)
        if self.answering is not None:
            return self.answering(seen)
        return error_reply(500, "nothing_scripted")

    @property
    def paths(self) -> list[str]:
        return [f"{seen.method} {seen.path}" for seen in self.seen]


@asynccontextmanager
async def scripted_service() -> AsyncIterator[ScriptedService]:
    """A scripted service on a free loopback port."""
    service = ScriptedService()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", service.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await runner.cleanup()


@dataclass
class Bench:
    """A client, the clock it lives by, and what it told about itself."""

    client: PaymentsClient
    clock: InstantClock
    attempts: list[Attempt]
    circuit_changes: list[CircuitState]


@asynccontextmanager
async def bench(
    base_url: str,
    *,
    secrets: Sequence[str] = (SECRET,),
    credentials: Credentials | None = None,
    clock: InstantClock | None = None,
    budget: Budget | None = None,
    priority: Priority = Priority.LIVE,
    key_store: IdempotencyKeys | None = None,
    timeout_s: float = 5.0,
) -> AsyncIterator[Bench]:
    """A started client against `base_url`."""
    clock = clock or InstantClock()
    attempts: list[Attempt] = []
    changes: list[CircuitState] = []
    client = PaymentsClient(
        base_url,
        credentials or Credentials(APP_ID, secrets),
        clock=clock,
        budget=budget,
        priority=priority,
        key_store=key_store,
        timeout_s=timeout_s,
        on_attempt=attempts.append,
        on_circuit=changes.append,
    )
    async with client:
        yield Bench(client, clock, attempts, changes)


SESSION_FIELDS: dict[str, Any] = {
    "mode": "payment",
    "order_id": "order-1",
    "success_url": "https://shop.example/ok",
    "cancel_url": "https://shop.example/no",
    "amount": "10.50",
    "description": "One thing",
}


def session_json(**more: Any) -> dict[str, Any]:
    """A session as the service might show it."""
    return {
        "id": "cs_1",
        "status": "OPEN",
        "url": "https://pay.example/cs_1",
        "expires_at": "2026-01-01T00:30:00Z",
        "order": {"id": "ord_1", "status": "PENDING"},
    } | more
