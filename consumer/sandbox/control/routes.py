"""Control addresses: the payer, the chain, the dashboard and time, by hand (contract, Sandbox). No authentication."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from consumer.sandbox.api.fields import parse_object
from consumer.sandbox.clock import iso
from consumer.sandbox.control import dashboard, payer, trigger, warehouse
from consumer.sandbox.control.describe import delivery_record
from consumer.sandbox.control.page import add_control_page
from consumer.sandbox.errors import PageRefusal, Refusal
from consumer.sandbox.scenarios import SCENARIOS, play
from consumer.sandbox.simulator import Simulator

MAX_ADVANCE_S = 3660 * 86400
DELIVERIES_SHOWN = 1000

Body = dict[str, Any]
Action = Callable[[Simulator, web.Request, Body], Awaitable[Any]]


def add_control_routes(application: web.Application, sandbox: Simulator) -> None:
    """Everything under /_sandbox/."""
    for method, path, action in (*_ROUTES, *payer.ROUTES, *dashboard.ROUTES, *warehouse.ROUTES):
        application.router.add_route(method, f"/_sandbox{path}", _handler(sandbox, action))
    add_control_page(application, sandbox, check_local)


def check_local(request: web.Request) -> None:
    """The caller is on this machine, and no web page of another site calls for it. Raises loopback_only."""
    origin = request.headers.get("Origin")
    same_site = origin is None or origin == f"{request.scheme}://{request.host}"
    if not same_site or not _host_is_local(request.host) or not _is_local(request.remote):
        raise Refusal("loopback_only")


def _is_local(remote: str | None) -> bool:
    try:
        address = ipaddress.ip_address(remote or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _host_is_local(host: str) -> bool:
    # A name that merely resolves to this machine is what a rebinding attack uses.
    name = host.rsplit(":", 1)[0].strip("[]") if not host.endswith("]") else host.strip("[]")
    return name == "localhost" or _is_local(name)


def _handler(sandbox: Simulator, action: Action) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        check_local(request)
        sandbox.engine.run_due()
        body = parse_object(await request.read()) if request.can_read_body else {}
        try:
            answer = await action(sandbox, request, body)
        except PageRefusal as refusal:
            return web.json_response(
                {"statusCode": 409, "code": refusal.problem_code, "message": refusal.message}, status=409
            )
        finally:
            sandbox.save()
            sandbox.sender.wake()
        if isinstance(answer, web.StreamResponse):
            return answer
        return web.json_response(answer, dumps=lambda document: json.dumps(document, ensure_ascii=False, default=str))

    return handle


def number_of(body: Body, name: str, high: float) -> float:
    """A number of the body. Raises validation_failed."""
    value = body.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= high:
        raise Refusal("validation_failed", f"{name} must be a number from 0 to {high:g}.", field=name)
    return value


async def _clock(sandbox: Simulator, _request: web.Request, _body: Body) -> Any:
    due_at = sandbox.engine.next_due()
    return {
        "now": iso(sandbox.clock.now()),
        "driven": sandbox.clock.driven,
        "offset_s": sandbox.clock.offset_s,
        "next_due": iso(due_at) if due_at else None,
    }


async def _advance(sandbox: Simulator, request: web.Request, body: Body) -> Any:
    await sandbox.advance(number_of(body, "seconds", MAX_ADVANCE_S))
    return await _clock(sandbox, request, body)


async def _faults(sandbox: Simulator, _request: web.Request, body: Body) -> Any:
    """Changes the named faults, keeps the others; `{"clear": true}` first clears all."""
    body = dict(body)
    switches: Body = {name: body.pop(name) for name in ("read_lag_s", "retention_s") if name in body}
    if body.pop("clear", False) is True:
        sandbox.engine.faults.clear()
        sandbox.assumptions.set({"read_lag_s": 0, "retention_s": 0})
    sandbox.engine.faults.set(body)
    sandbox.assumptions.set(switches)
    return sandbox.engine.faults.values() | {
        name: sandbox.assumptions.values()[name] for name in ("read_lag_s", "retention_s")
    }


async def _clear_faults(sandbox: Simulator, request: web.Request, _body: Body) -> Any:
    return await _faults(sandbox, request, {"clear": True})


async def _assumptions(sandbox: Simulator, _request: web.Request, body: Body) -> Any:
    if body:
        sandbox.assumptions.set(body)
        sandbox.engine.subscriptions.arm()
    return {"assumptions": sandbox.assumptions.table()}


async def _scenario(sandbox: Simulator, request: web.Request, body: Body) -> Any:
    """`application` and `count` are optional."""
    unknown = sorted(set(body) - {"application", "count"})
    if unknown:
        raise Refusal("validation_failed", f"Unknown field: {unknown[0][:100]}", field=unknown[0][:100])
    app_id = payer.text_of(body, "application")
    return await play(sandbox, request.match_info["name"], application=app_id, count=body.get("count", 3))


async def _scenarios(_sandbox: Simulator, _request: web.Request, _body: Body) -> Any:
    return {"scenarios": {name: (story.__doc__ or "").strip().splitlines()[0] for name, story in SCENARIOS.items()}}


async def _reset(sandbox: Simulator, _request: web.Request, _body: Body) -> Any:
    await sandbox.reset()
    return {"status": "reset"}


async def _deliveries(sandbox: Simulator, request: web.Request, _body: Body) -> Any:
    """Oldest first, the last 1,000. `?event=`, `?application=`, `?status=`, `?type=` filter."""
    wanted = {
        "event_id": request.query.get("event"),
        "application": request.query.get("application"),
        "status": request.query.get("status"),
        "type": request.query.get("type"),
    }
    shown = [delivery_record(delivery) for delivery in sandbox.engine.world.deliveries]
    for name, value in wanted.items():
        if value is not None:
            shown = [one for one in shown if one[name] == value]
    return {"count": len(shown), "items": shown[-DELIVERIES_SHOWN:]}


async def _settle(sandbox: Simulator, _request: web.Request, body: Body) -> Any:
    timeout_s = number_of(body, "timeout_s", 120) if "timeout_s" in body else 30.0
    return {"settled": await sandbox.settled(timeout_s)}


async def _trigger(sandbox: Simulator, _request: web.Request, body: Body) -> Any:
    return await trigger.trigger(sandbox, body)


_ROUTES: tuple[tuple[str, str, Action], ...] = (
    ("GET", "/clock", _clock),
    ("POST", "/clock/advance", _advance),
    ("GET", "/faults", _faults),
    ("POST", "/faults", _faults),
    ("DELETE", "/faults", _clear_faults),
    ("GET", "/assumptions", _assumptions),
    ("POST", "/assumptions", _assumptions),
    ("GET", "/scenarios", _scenarios),
    ("POST", "/scenarios/{name}", _scenario),
    ("POST", "/reset", _reset),
    ("GET", "/deliveries", _deliveries),
    ("POST", "/settle", _settle),
    ("POST", "/trigger", _trigger),
)
