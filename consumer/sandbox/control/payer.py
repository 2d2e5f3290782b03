"""The payer and the chain by hand: pay, cancel, renew, fail, withdraw (contract, Sandbox)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from consumer.sandbox.control.describe import payment_record, session_record, subscription_record
from consumer.sandbox.engine import records as r
from consumer.sandbox.errors import Refusal
from consumer.sandbox.simulator import Simulator

Body = dict[str, Any]
Action = Callable[[Simulator, web.Request, Body], Awaitable[Any]]


def text_of(body: Body, name: str, default: str | None = None) -> str | None:
    """A string of the body, or the default. Raises validation_failed."""
    value = body.get(name, default)
    if value is not None and (not isinstance(value, str) or not 1 <= len(value) <= 2048):
        raise Refusal("validation_failed", f"{name} must be a string.", field=name)
    return value


def _session(sandbox: Simulator, request: web.Request) -> r.Session:
    return sandbox.engine.session(request.match_info["id"])


async def _show(sandbox: Simulator, request: web.Request, _body: Body) -> Any:
    return session_record(sandbox.engine, _session(sandbox, request))


async def _pay(sandbox: Simulator, request: web.Request, body: Body) -> Any:
    engine = sandbox.engine
    until = text_of(body, "until", "finalized") or "finalized"
    engine.payments.pay(_session(sandbox, request), until=until, wallet=text_of(body, "wallet"))
    return await _show(sandbox, request, body)


async def _drop_payment(sandbox: Simulator, request: web.Request, body: Body) -> Any:
    payment = sandbox.engine.sessions.payment_in_flight(_session(sandbox, request))
    if payment is None:
        raise Refusal("conflict", "no payment is in flight")
    sandbox.engine.payments.fail(payment)
    return await _show(sandbox, request, body)


async def _build(sandbox: Simulator, request: web.Request, body: Body) -> Any:
    succeeds = body.get("succeeds", True)
    if not isinstance(succeeds, bool):
        raise Refusal("validation_failed", "succeeds must be true or false.", field="succeeds")
    sandbox.engine.payments.build(_session(sandbox, request), wallet=text_of(body, "wallet"), succeeds=succeeds)
    return await _show(sandbox, request, body)


async def _cancel(sandbox: Simulator, request: web.Request, body: Body) -> Any:
    sandbox.engine.sessions.cancel(_session(sandbox, request))
    return await _show(sandbox, request, body)


async def _sessions(sandbox: Simulator, _request: web.Request, _body: Body) -> Any:
    return {"items": [session_record(sandbox.engine, one) for one in list(sandbox.engine.world.sessions)[-200:]]}


async def _payments(sandbox: Simulator, _request: web.Request, _body: Body) -> Any:
    return {"items": [payment_record(one) for one in list(sandbox.engine.world.payments)[-200:]]}


async def _subscriptions(sandbox: Simulator, _request: web.Request, _body: Body) -> Any:
    engine = sandbox.engine
    return {"items": [subscription_record(engine, one) for one in list(engine.world.subscriptions)[-200:]]}


async def _subscription(sandbox: Simulator, request: web.Request, _body: Body) -> Any:
    engine = sandbox.engine
    return subscription_record(engine, engine.subscriptions.any(request.match_info["id"]))


def _act(name: str) -> Action:
    async def act(sandbox: Simulator, request: web.Request, _body: Body) -> Any:
        subscriptions = sandbox.engine.subscriptions
        changed = getattr(subscriptions, name)(subscriptions.any(request.match_info["id"]))
        return subscription_record(sandbox.engine, changed)

    return act


async def _charge(sandbox: Simulator, request: web.Request, body: Body) -> Any:
    subscriptions = sandbox.engine.subscriptions
    wanted = text_of(body, "charge", "ok") or "ok"
    changed = subscriptions.set_charge(subscriptions.any(request.match_info["id"]), wanted)
    return subscription_record(sandbox.engine, changed)


ROUTES: tuple[tuple[str, str, Action], ...] = (
    ("GET", "/sessions", _sessions),
    ("GET", "/sessions/{id}", _show),
    ("POST", "/sessions/{id}/pay", _pay),
    ("POST", "/sessions/{id}/drop-payment", _drop_payment),
    ("POST", "/sessions/{id}/build", _build),
    ("POST", "/sessions/{id}/cancel", _cancel),
    ("GET", "/payments", _payments),
    ("GET", "/subscriptions", _subscriptions),
    ("GET", "/subscriptions/{id}", _subscription),
    ("POST", "/subscriptions/{id}/renew", _act("renew")),
    ("POST", "/subscriptions/{id}/fail", _act("fail")),
    ("POST", "/subscriptions/{id}/charge", _charge),
    ("POST", "/subscriptions/{id}/payer-cancel", _act("payer_cancel")),
    ("POST", "/subscriptions/{id}/payer-withdraw", _act("payer_withdraw")),
    ("POST", "/subscriptions/{id}/cancel-on-solana", _act("cancel_on_solana")),
    ("POST", "/subscriptions/{id}/reclaim-rent", _act("reclaim_rent")),
)
