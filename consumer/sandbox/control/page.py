"""The control page: the control addresses with buttons, for people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from consumer.sandbox.checkout.routes import HEADERS, page_environment
from consumer.sandbox.clock import iso
from consumer.sandbox.control.describe import (
    application_record,
    delivery_record,
    merchant_record,
    session_record,
    subscription_record,
)
from consumer.sandbox.errors import Refusal
from consumer.sandbox.faults import NUMBERS, TEXTS
from consumer.sandbox.scenarios import SCENARIOS
from consumer.sandbox.simulator import Simulator

FOLDER = Path(__file__).parent
SHOWN = 25
ASSETS = {"control.js": "text/javascript"}


def add_control_page(application: web.Application, sandbox: Simulator, check: Callable[[web.Request], None]) -> None:
    """`GET /_sandbox/` and its script; `check` is who may see it."""
    environment = page_environment(FOLDER / "templates")

    async def page(request: web.Request) -> web.StreamResponse:
        check(request)
        sandbox.engine.run_due()
        text = environment.get_template("control.html").render(**_values(sandbox))
        return web.Response(text=text, content_type="text/html", headers=HEADERS)

    async def asset(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in ASSETS:
            raise Refusal("not_found")
        return web.Response(text=(FOLDER / "assets" / name).read_text(), content_type=ASSETS[name])

    routes: tuple[tuple[str, Callable[[web.Request], Awaitable[web.StreamResponse]]], ...] = (
        ("/_sandbox/", page),
        ("/_sandbox", page),
        ("/_sandbox/assets/{name}", asset),
    )
    for path, handler in routes:
        application.router.add_get(path, handler)


def _values(sandbox: Simulator) -> dict[str, Any]:
    engine, world = sandbox.engine, sandbox.engine.world
    faults = engine.faults.values()
    return {
        "now": iso(sandbox.clock.now()),
        "base_url": sandbox.base_url,
        "driven": sandbox.clock.driven,
        "merchants": [merchant_record(merchant) for merchant in world.merchants],
        "applications": [application_record(engine, one) for one in world.applications],
        "prices": [(price.id, "recurring" if price.interval_days else "one-time") for price in world.prices],
        "sessions": [_linked(sandbox, one) for one in _newest(world.sessions)],
        "subscriptions": [subscription_record(engine, one) for one in _newest(world.subscriptions)],
        "deliveries": [delivery_record(one) for one in _newest(world.deliveries)],
        "events": [(iso(one.created_at), one.type, one.id, one.app_id) for one in _newest(world.events)],
        "faults": [
            {"name": name, "value": faults[name], "text": text, "flag": name == "reorder", "number": name in NUMBERS}
            for name, text in TEXTS.items()
        ],
        "assumptions": sandbox.assumptions.table(),
        "scenarios": [
            (name, (story.__doc__ or "").strip().splitlines()[0].replace("`", "")) for name, story in SCENARIOS.items()
        ],
    }


def _newest(shelf: Any) -> list[Any]:
    return sorted(shelf, key=lambda one: -one.seq)[:SHOWN]


def _linked(sandbox: Simulator, session: Any) -> dict[str, Any]:
    return session_record(sandbox.engine, session) | {"link": sandbox.link(session.token)}
