"""Door: who may come in, and from where; what every page says of itself to a browser.

With a file of users a page asks for name and password (HTTP Basic: no cookie, no session, so nothing that could be
stolen, fixed or left behind). Without one it answers programs and browsers of this machine only, by a name of this
machine (a rebinding attack comes by another), and nobody through a proxy that names itself. Nothing is changed by a
GET, and no POST is taken that a page of another site sent.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Middleware

from consumer.console.answers import RETRY_AFTER_S, WebHandler, is_of_this_machine
from consumer.console.pages.users import Busy, User, UserRole, Users
from consumer.telemetry.logs import Condition

USER: Final = web.RequestKey("user", User)
ANYBODY: Final = User("console", UserRole.OPERATOR)
"""Whoever is on this machine, where no users are set up."""
REFUSED_QUIET_S: Final = 60.0
ASKS: Final = {"WWW-Authenticate": 'Basic realm="consumer console", charset="UTF-8"'}
LATER: Final = {"Retry-After": str(RETRY_AFTER_S)}
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",  # by `no-referrer` a browser's own POST comes from nowhere, too
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def door(users: Users | None) -> Middleware:
    """Let in who may, as `request[USER]`. Raises aiohttp's 401, 403, 503."""
    refused = Condition("console_sign_in_refused", quiet_s=REFUSED_QUIET_S)

    @web.middleware
    async def check(request: web.Request, handler: WebHandler) -> web.StreamResponse:
        request[USER] = user = ANYBODY if users is None else await _signed_in(request, users, refused)
        if users is None and not (is_of_this_machine(request) and is_a_browsers(request)):
            raise web.HTTPForbidden(
                reason="Without CONSUMER_CONSOLE_USERS only this machine is answered, not through a proxy"
            )
        if request.method not in ("GET", "HEAD"):
            if not is_from_own_page(request):
                raise web.HTTPForbidden(reason="This was sent by a page of another site")
            if not user.may_act:
                raise web.HTTPForbidden(reason="A viewer may look only")
        return await handler(request)

    return check


async def _signed_in(request: web.Request, users: Users, refused: Condition) -> User:
    given = credentials(request.headers.get("Authorization", ""))
    if given is None:
        raise web.HTTPUnauthorized(reason="Name and password are needed", headers=ASKS)
    try:
        user = await users.known(*given)
    except Busy as error:
        raise web.HTTPServiceUnavailable(reason="Too many sign in at once", headers=LATER) from error
    if user is None:
        refused.lasts("wrong")
        raise web.HTTPUnauthorized(reason="Name or password is wrong", headers=ASKS)
    refused.lapse()
    return user


def credentials(header: str) -> tuple[str, str] | None:
    """Name and password of a Basic header; None for what is none. Pure."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def is_a_browsers(request: web.Request) -> bool:
    """Whether it speaks as browsers do. A proxy that says nothing of whom it passes on often speaks HTTP/1.0: nginx as
    it comes, which also gives each request the name of this machine."""
    return request.version >= HttpVersion11


def is_from_own_page(request: web.Request) -> bool:
    """Whether a request that changes something was sent by a page of ours, or by no page at all. A browser says so by
    `Sec-Fetch-Site`, and where it does not trust the address (plain HTTP) by `Origin`."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        return site == "same-origin"
    return origin is None or origin.partition("://")[2] == request.host
