"""Routes: the addresses of the pages, under `/console` on the internal port.

    GET  /console/                          how things stand
    GET  /console/find?name=                any id leads to its subject
    GET  /console/order|subscription|customer?id=&application=      why, and what comes next
    GET  /console/event?id=                 one event, its runs and attempts
    GET  /console/events|dead|findings|quarantine|handlers|plans|audit
    POST /console/act/…                     the buttons (`actions.py`)

An id is in the query: there it may hold anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from consumer.console.answers import WebHandler, problem_of
from consumer.console.pages import actions, lists, looks
from consumer.console.pages.actions import button
from consumer.console.pages.desk import DESK, Desk
from consumer.console.pages.door import HEADERS, door
from consumer.console.pages.render import FOLDER, PREFIX, page
from consumer.console.pages.users import Users
from consumer.errors import LedgerSlow

LOOK_WITHIN_S: Final = 30.0
"""Longer than `consumer status` takes at most."""
PAGES: Final[Mapping[str, WebHandler]] = {
    "/": looks.overview,
    "/find": looks.named_anything,
    "/{kind:order|subscription|customer}": looks.subject,
    "/event": looks.event,
    "/events": lists.list_events,
    "/dead": lists.list_dead,
    "/findings": lists.list_findings,
    "/quarantine": lists.list_quarantine,
    "/handlers": lists.list_handlers,
    "/plans": lists.list_plans,
    "/audit": lists.list_audit,
}
BUTTONS: Final[Mapping[str, WebHandler]] = {
    "/act/pause": button(actions.pause),
    "/act/resume": button(actions.resume),
    "/act/redrive": button(actions.redrive),
    "/act/discard": button(actions.discard),
    "/act/restore": button(actions.restore),
    "/act/throw-away": button(actions.throw_away),
    "/act/say": button(actions.tell),
    "/act/read": button(actions.read_again, needs_reason=False),
}


def page_routes(app: web.Application, desk: Desk, users: Users | None) -> None:
    """Add the pages. `users`: who may come in; None: whoever is on this machine, as operator."""
    part = web.Application(middlewares=[_problems, door(users)])
    part[DESK] = desk
    for path, look in PAGES.items():
        part.router.add_get(path, look)
    for path, act in BUTTONS.items():
        part.router.add_post(path, act)
    part.router.add_get("/assets/console.css", _style)
    for path in ("/", PREFIX):
        app.router.add_get(path, _to_the_pages)
    app.add_subapp(PREFIX, part)


@web.middleware
async def _problems(request: web.Request, handler: WebHandler) -> web.StreamResponse:
    """Every error as a page. Who looks gets an answer, whatever the ledger does; a press may have been done, and is
    not cut short."""
    limit = asyncio.timeout(None if request.method == "POST" else LOOK_WITHIN_S)
    try:
        async with limit:
            return await handler(request)
    except Exception as error:  # noqa: BLE001 - every one has a page, and what is unexpected is logged
        found = problem_of(LedgerSlow() if limit.expired() else error)
    answer = page(request, "problem.html", found.status, problem=found, pressed=request.method == "POST")
    answer.headers.update(found.headers)
    return answer


async def _style(_: web.Request) -> web.Response:
    text = (FOLDER / "assets" / "console.css").read_text()
    return web.Response(text=text, content_type="text/css", headers={**HEADERS, "Cache-Control": "max-age=300"})


async def _to_the_pages(_: web.Request) -> web.Response:
    """From `/` and `/console` to `/console/`, relative to where a browser is. Where a proxy's path is another than
    `/console`, that path without its slash at the end leads to the proxy's own `/console/`."""
    raise web.HTTPSeeOther(f"{PREFIX.removeprefix('/')}/")
