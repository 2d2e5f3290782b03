"""Looks: the pages. Each asks the ledger once, bounded, and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.console import cure
from consumer.console.event_view import attempt_document, event_document, payload_of, read_event, run_document
from consumer.console.explain import explain
from consumer.console.find import Found, find_shown, near
from consumer.console.pages.desk import DESK
from consumer.console.pages.render import link, page
from consumer.errors import NotFound, UsageError
from consumer.ledger.engine.database_time import shared_time

NAME_MAX_CHARS = 300
FOREIGN_MAX_CHARS = 100_000


async def overview(request: web.Request) -> web.Response:
    """How things stand: what `consumer status` says. It is made anew by itself, unless it is to stand still: who types
    an id there, or has it read out, would begin again each time."""
    still = request.query.get("still") == "1"
    return page(request, "overview.html", found=await request.app[DESK].standing(), still=still)


async def subject(request: web.Request) -> web.Response:
    """Why an order, a subscription or a customer stands where it does, and what comes next (case A50)."""
    desk, kind, id_ = request.app[DESK], request.match_info["kind"], named(request, "id")
    application = desk.looked_at(request.query.get("application"))
    reads = desk.applications.get(application, False)
    async with desk.database.reading() as session:
        now = await shared_time(session)
        try:
            found = await explain(session, application, (kind, id_), desk.policy, now, has_credentials=reads)
        except NotFound:
            but = link(kind, id=id_, application=application)
            return await _named(request, session, id_, application if _is_given(request) else None, but=but)
    is_set_up = application in desk.applications
    return page(request, "subject.html", kind=kind, id=id_, application=application, found=found, is_set_up=is_set_up)


async def named_anything(request: web.Request) -> web.StreamResponse:
    """Any id leads to its subject; what leads to one only goes there at once."""
    name = named(request, "name")
    desk, given = request.app[DESK], request.query.get("application")
    application = desk.looked_at(given) if given else None
    async with desk.database.reading() as session:
        return await _named(request, session, name, application)


async def _named(
    request: web.Request, session: AsyncSession, name: str, application: str | None, *, but: str | None = None
) -> web.Response:
    """What has this name, and to the one page that tells of it, if that is not the page that led here (`but`)."""
    found = await _found(session, name, application)
    ways = list(dict.fromkeys(_way(one) for one in found))
    if len(ways) == 1 and ways[0] is not None and ways[0] != but:
        raise web.HTTPSeeOther(ways[0])
    return await _told(request, session, name, application, found)


async def _found(session: AsyncSession, name: str, application: str | None) -> list[Found]:
    """What has this name, to the letter, or but for what was copied with it at its ends."""
    found: list[Found] = []
    for tried in dict.fromkeys((name, name.strip())):
        if not found:
            found = await find_shown(session, tried, application=application)
    return found


async def _told(
    request: web.Request, session: AsyncSession, name: str, application: str | None, found: Sequence[Found]
) -> web.Response:
    """The list of what has this name. Raises NotFound for an application that is neither set up nor has any."""
    if not found and application is not None:
        request.app[DESK].application(application)
    alike = [] if found else await near(session, name, application=application)
    rows = [(one, _way(one)) for one in found]
    return page(request, "found.html", 200 if found else 404, name=name, found=rows, near=alike)


def _way(one: Found) -> str | None:
    """The page that tells the rest."""
    if one.kind == "event":
        return link("event", id=one.id, application=one.application)
    if one.subject is not None:
        return link(one.subject[0], id=one.subject[1], application=one.application)
    return None


async def event(request: web.Request) -> web.Response:
    """One event: what it says (masked), how far each handler is with it, and where attempts failed (case R4)."""
    desk, id_ = request.app[DESK], named(request, "id")
    application = desk.looked_at(request.query.get("application"))
    async with desk.database.reading() as session:
        try:
            row, of_event, attempts, runbooks = await read_event(session, application, id_)
        except NotFound:  # what comes next is an event that is not published yet
            where = application if _is_given(request) else None
            return await _told(request, session, id_, where, await _found(session, id_, where))
    said = orjson.dumps(payload_of(row).body, option=orjson.OPT_INDENT_2).decode()
    return page(
        request,
        "event.html",
        event=event_document(row),
        said=said[:FOREIGN_MAX_CHARS].splitlines(),
        is_cut=len(said) > FOREIGN_MAX_CHARS,
        runs=[run_document(one, runbooks) for one in of_event],
        attempts=[attempt_document(one) for one in attempts],
        show_raw=cure.command("consumer events show", id_, options=f"--raw {cure.of_application(application)}"),
    )


def _is_given(request: web.Request) -> bool:
    """Whether an application was named; else what the first one lacks may be another's."""
    return bool(request.query.get("application"))


def named(request: web.Request, field: str) -> str:
    """What was asked for. Raises UsageError."""
    found = request.query.get(field, "")
    if not found.strip() or len(found) > NAME_MAX_CHARS or "\x00" in found:
        raise UsageError(f"{field} has 1 to {NAME_MAX_CHARS} characters, none of them NUL")
    return found
