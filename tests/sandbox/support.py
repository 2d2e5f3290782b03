"""What the sandbox's tests share: an engine on a driven clock, a small API client, a webhook receiver."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from consumer.sandbox import DEFAULT_APP_ID, DEFAULT_APP_SECRET, Assumptions, Engine, SandboxClock, SandboxConfig
from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.events import public_id
from consumer.sandbox.engine.money import parse_amount
from consumer.sandbox.engine.sessions import SessionRequest

DAY_S = 86400.0
_numbers = itertools.count(1)


def make_engine(*, limits: bool = False, seed: int | None = 7, **assumptions: Any) -> Engine:
    """A seeded engine whose clock stands still at 2026-01-01."""
    config = SandboxConfig(driven=True, seed=seed, limits=limits)
    engine = Engine(config, SandboxClock(driven=True), Assumptions(assumptions))
    engine.seed()
    return engine


def request(**changes: Any) -> SessionRequest:
    """A payment session's request of 12.50 USDC; with `price_id` that price instead."""
    values: dict[str, Any] = {
        "mode": "payment",
        "order_id": f"order-{next(_numbers)}",
        "success_url": "https://shop.example/done",
        "cancel_url": "https://shop.example/back",
    }
    if "price_id" not in changes:
        values |= {"amount": parse_amount("12.5"), "description": "Two tickets"}
    return SessionRequest(**(values | changes))


def create(engine: Engine, application: r.Application | None = None, **changes: Any) -> r.Session:
    """A new session of the seeded application."""
    return engine.sessions.create(application or engine.application, request(**changes)).session


def subscribe(engine: Engine, price_id: str = "svc_price_monthly", **changes: Any) -> r.Subscription:
    """A customer subscribes."""
    session = create(engine, mode="subscription", price_id=price_id, **changes)
    engine.payments.pay(session)
    return engine.subscriptions.any(engine.session(session.id).subscription_id or "")


def again(engine: Engine, subscription: r.Subscription) -> r.Subscription:
    """The subscription as it is now."""
    return engine.subscriptions.any(subscription.id)


def types(engine: Engine) -> list[str]:
    """The types of all events so far, in order."""
    return [event.type for event in sorted(engine.world.events, key=lambda event: event.seq)]


def event_ids(engine: Engine) -> list[str]:
    """The public ids of all events so far, in order."""
    return [public_id(event) for event in sorted(engine.world.events, key=lambda event: event.seq)]


def body(**changes: Any) -> dict[str, Any]:
    """A create request as JSON; None removes a field."""
    values: dict[str, Any] = {
        "mode": "payment",
        "order_id": f"order-{next(_numbers)}",
        "success_url": "https://shop.example/done",
        "cancel_url": "https://shop.example/back",
        "amount": "12.50",
        "description": "Two tickets",
    }
    return {name: value for name, value in (values | changes).items() if value is not None}


def basic(app_id: str = DEFAULT_APP_ID, secret: str = DEFAULT_APP_SECRET) -> str:
    """The Authorization header."""
    return "Basic " + base64.b64encode(f"{app_id}:{secret}".encode()).decode()


@dataclass
class Reply:
    """An answer: status, headers, and the body as text and as JSON."""

    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> Any:
        return self.json.get("code")


class Api:
    """A merchant's server: Basic auth and a fresh Idempotency-Key on every POST."""

    def __init__(self, base_url: Callable[[], str], http: aiohttp.ClientSession) -> None:
        self._base_url = base_url
        self._http = http
        self.authorization = basic()

    async def call(self, method: str, path: str, *, headers: dict[str, str | None] | None = None, **more: Any) -> Reply:
        """Any request; a header given as None is left out."""
        sent: dict[str, str | None] = {"Authorization": self.authorization}
        if method == "POST":
            sent["Idempotency-Key"] = f"key-{next(_numbers)}"
        sent |= headers or {}
        kept = {name: value for name, value in sent.items() if value is not None}
        url = self._base_url() + path
        async with self._http.request(method, url, headers=kept, allow_redirects=False, **more) as answer:
            return Reply(answer.status, answer.headers.copy(), (await answer.read()).decode())

    async def get(self, path: str, **query: Any) -> Reply:
        return await self.call("GET", path, params={name: str(value) for name, value in query.items()})

    async def post(self, path: str, document: Any = None, **headers: str | None) -> Reply:
        named: dict[str, str | None] = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.call("POST", path, json={} if document is None else document, headers=named)

    async def create(self, **changes: Any) -> Any:
        """A session that must be created."""
        reply = await self.post("/v1/checkout-sessions", body(**changes))
        assert reply.status == 201, reply.text
        return reply.json

    async def control(self, path: str, document: Any = None) -> Any:
        """A control address that must succeed."""
        reply = await self.post(f"/_sandbox{path}", document)
        assert reply.status == 200, reply.text
        return reply.json

    async def items(self, path: str, **query: Any) -> list[Any]:
        """The items of a list's first page."""
        reply = await self.get(path, **query)
        assert reply.status == 200, reply.text
        found: list[Any] = reply.json["items"]
        return found


@dataclass
class Received:
    """One webhook request."""

    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Receiver:
    """A webhook endpoint: records, and answers the statuses of `answers` in turn, then 200."""

    received: list[Received] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    url: str = ""
    at_once: int = 0
    most_at_once: int = 0
    before_answer: Callable[[], Any] | None = None

    async def handle(self, request: web.Request) -> web.Response:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            raw = await request.read()
            self.received.append(Received(dict(request.headers), raw))
            if self.before_answer is not None:
                await self.before_answer()
            return web.Response(status=self.answers.pop(0) if self.answers else 200)
        finally:
            self.at_once -= 1

    def types(self) -> list[str]:
        """The types as they arrived."""
        return [one.json["type"] for one in self.received]
