"""The query API: where an order, a subscription, a customer stands; and registering a checkout.

    GET /api/orders/{order_id}            PUT  /api/checkouts/{session_id}
    GET /api/subscriptions/{id}           POST /api/orders/{order_id}/read
    GET /api/customers/{ref}/access       POST /api/subscriptions/{id}/read
    GET /api/findings                     GET  /api/events/{id}
    GET /api/processes
    `?application=` for others than `default`, or than the only one

A shop's "processing..." page asks it: a browser that reaches `success_url` proves nothing (case F16).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote_to_bytes

from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock
from consumer.console.alarms.queues import KINDS, findings, queues
from consumer.console.answers import answer, bearer, errors, guard
from consumer.console.checkouts import parse, register_checkout
from consumer.console.event_view import event_view
from consumer.console.views import access_view, order_view, subscription_view
from consumer.errors import UsageError
from consumer.ledger import Database, processes
from consumer.ledger.reading import read_requests
from consumer.plugin import ReadKind, ReadRequest
from handlers.access.policy import Policy

PREFIX = "/api"
BODY_MAX_BYTES = 16 * 1024
ID_MAX_CHARS = 255
DEFAULT_APPLICATION = "default"

View = Callable[[AsyncSession, str, str], Awaitable[dict[str, Any]]]


def query_routes(
    app: web.Application,
    *,
    database: Database,
    clock: Clock,
    token: str | None,
    applications: Sequence[str],
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Add the query API under `/api`. `token`: the bearer token, needed when given. `options`: the plugins' own.

    Raises pydantic's ValidationError when the access plugin's options are not usable.
    """
    api = QueryApi(database, clock, applications, Policy.model_validate((options or {}).get("access", {})))
    part = web.Application(middlewares=[errors, guard(token), bearer(token)])
    part.router.add_get(r"/orders/{id:[\s\S]+}", api.order)
    part.router.add_get(r"/subscriptions/{id:[\s\S]+}", api.subscription)
    part.router.add_get(r"/customers/{id:[\s\S]+}/access", api.access)
    part.router.add_get("/findings", api.findings)
    part.router.add_get("/processes", api.processes)
    part.router.add_get(r"/events/{id:[\s\S]+}", api.event)
    part.router.add_put(r"/checkouts/{id:[\s\S]+}", api.checkout)
    part.router.add_post(r"/orders/{id:[\s\S]+}/read", api.read_order)
    part.router.add_post(r"/subscriptions/{id:[\s\S]+}/read", api.read_subscription)
    app.add_subapp(PREFIX, part)


class QueryApi:
    """The requests, one method each."""

    def __init__(self, database: Database, clock: Clock, applications: Sequence[str], policy: Policy) -> None:
        self._database = database
        self._clock = clock
        self._applications = frozenset(applications)
        self._unnamed = next(iter(applications)) if len(self._applications) == 1 else DEFAULT_APPLICATION
        self._policy = policy

    async def order(self, request: web.Request) -> web.Response:
        """Where an order stands."""
        return await self._look(request, _id(request, "orders"), order_view)

    async def subscription(self, request: web.Request) -> web.Response:
        """Where a subscription stands."""

        async def view(session: AsyncSession, application: str, id_: str) -> dict[str, Any]:
            return await subscription_view(session, application, id_, self._policy, self._clock.now())

        return await self._look(request, _id(request, "subscriptions"), view)

    async def access(self, request: web.Request) -> web.Response:
        """What a customer may use."""

        async def view(session: AsyncSession, application: str, id_: str) -> dict[str, Any]:
            return await access_view(session, application, id_, self._clock.now())

        return await self._look(request, _id(request, "customers", "/access"), view)

    async def event(self, request: web.Request) -> web.Response:
        """What an event is, how far each handler is with it, and where in their code attempts failed."""
        return await self._look(request, _id(request, "events"), event_view)

    async def findings(self, request: web.Request) -> web.Response:
        """What waits for an operator: how much of each kind, and the oldest of it; `?kind=` for one kind."""
        application, kind = self._application(request), request.query.get("kind")
        async with self._database.reading() as session:
            waiting = await queues(session, application)
            listed = await findings(session, application, kind)
        if not listed and kind is not None and kind not in KINDS:
            alike = ", ".join(get_close_matches(kind, sorted(KINDS), n=3, cutoff=0.5))
            raise UsageError(f"there is no such kind of finding{alike and f'; near: {alike}'}")
        counted = [
            {"plugin": one.plugin, "kind": one.kind, "count": one.count, "oldest_at": one.oldest_at} for one in waiting
        ]
        return answer({"application": application, "queues": counted, "findings": listed})

    async def processes(self, _: web.Request) -> web.Response:
        """Every process of the last week: its roles, whether it can work, and what its checks last said."""
        async with self._database.reading() as session:
            listed = await processes.listed(session)
        return answer({"processes": [asdict(one) for one in listed]})

    async def checkout(self, request: web.Request) -> web.Response:
        """Register a checkout."""
        application, id_ = self._application(request), _id(request, "checkouts")
        body = parse(await _bounded(request))
        async with self._database.transaction() as session:
            done = await register_checkout(session, application, id_, body, self._clock.now())
        return answer(asdict(done))

    async def read_order(self, request: web.Request) -> web.Response:
        """Have the order read: the shop has seen a sign of payment, as 409 `order_already_paid` (case F27)."""
        return await self._ask(request, "order", _id(request, "orders", "/read"))

    async def read_subscription(self, request: web.Request) -> web.Response:
        """Have the subscription read: the shop has cancelled it, whatever the answer was (cases A38, A39)."""
        return await self._ask(request, "subscription", _id(request, "subscriptions", "/read"))

    async def _ask(self, request: web.Request, kind: ReadKind, id_: str) -> web.Response:
        application, now = self._application(request), self._clock.now()
        async with self._database.transaction() as session:
            await read_requests.ask(session, application, [ReadRequest(kind=kind, object_id=id_)], now)
        return answer({"application": application, "kind": kind, "id": id_, "asked_at": now}, 202)

    async def _look(self, request: web.Request, id_: str, view: View) -> web.Response:
        application = self._application(request)
        async with self._database.reading() as session:
            return answer(await view(session, application, id_))

    def _application(self, request: web.Request) -> str:
        name = request.query.get("application")
        if name is None and self._unnamed not in self._applications:
            raise UsageError("name the application by ?application=: there are several, and none is `default`")
        name = self._unnamed if name is None else name
        if name not in self._applications:
            raise UsageError("the application is unknown")  # not 404: of nobody is known what he may use there
        return name


async def _bounded(request: web.Request) -> bytes:
    """The body, of which nobody needs more than so much; the server's own limit is the whole port's."""
    body = bytearray()
    async for chunk in request.content.iter_chunked(BODY_MAX_BYTES):
        body += chunk
        if len(body) > BODY_MAX_BYTES:
            raise web.HTTPRequestEntityTooLarge(max_size=BODY_MAX_BYTES, actual_size=len(body))
    return bytes(body)


def _id(request: web.Request, kind: str, suffix: str = "") -> str:
    """The id in the path, whatever characters it has: taken from the raw path, decoded once (case F26)."""
    raw = request.rel_url.raw_path.removeprefix(f"{PREFIX}/{kind}/").removesuffix(suffix)
    try:
        found = unquote_to_bytes(raw).decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise UsageError("the id is not UTF-8") from error
    if not found or len(found) > ID_MAX_CHARS or "\x00" in found:
        raise UsageError(f"the id has 1 to {ID_MAX_CHARS} characters, none of them NUL")
    return found
