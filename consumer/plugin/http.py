"""HTTP: the session that handlers call others by (`ctx.http`)."""

from __future__ import annotations

from http import HTTPStatus
from types import SimpleNamespace
from typing import Final

import aiohttp

CONNECT_S: Final = 30.0
LOSE_THE_BODY: Final = (HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.FOUND, HTTPStatus.SEE_OTHER)
WHY: Final = "redirected: the {method} would be sent on as a GET, without its body"


def open_session() -> aiohttp.ClientSession:
    """A session for the running loop. A request takes as long as its handler may (`timeout_s`), and 30 s to connect.
    It keeps no cookies, which are one application's and would go with another's
    request. A redirect that would send a POST on as a GET without its body raises ClientResponseError: what that GET
    answers says nothing of what was to be done."""
    watched = aiohttp.TraceConfig()
    watched.on_request_redirect.append(_refuse)
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[watched],
    )


def loses_the_body(method: str, status: int) -> bool:
    """Whether a redirect of this status sends such a request on as a GET."""
    return status in LOSE_THE_BODY and method not in ("GET", "HEAD")


async def _refuse(_: aiohttp.ClientSession, __: SimpleNamespace, told: aiohttp.TraceRequestRedirectParams) -> None:
    answer = told.response
    if loses_the_body(told.method, answer.status):
        why = WHY.format(method=told.method)
        raise aiohttp.ClientResponseError(answer.request_info, answer.history, status=answer.status, message=why)
