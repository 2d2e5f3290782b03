"""Answers: JSON bodies, errors as `{"error": {"code", "message"}}`, and the bearer token, for everything under /api."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from yarl import URL

from consumer.errors import ConsumerError, LedgerUnavailable, NotFound, TermsDiffer, UsageError
from consumer.settings.values import is_loopback

log = structlog.get_logger(__name__)
WebHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RETRY_AFTER_S = 5


def answer(body: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer that no cache keeps."""
    return web.Response(
        status=status,
        body=orjson.dumps(body, default=_plain),
        content_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def problem(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    """An error in the one shape."""
    return answer({"error": {"code": code, "message": message}}, status, headers)


@dataclass(frozen=True)
class Problem:
    """Why a request was not done: the answer's status, code, message and headers."""

    status: int
    code: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


def problem_of(error: Exception) -> Problem:
    """What is said of an error; what is unexpected is logged and says nothing of itself. A redirect is raised."""
    match error:
        case web.HTTPException():
            if error.status < 400:
                raise error
            headers = {
                name: error.headers[name]
                for name in ("Allow", "WWW-Authenticate", "Retry-After")
                if name in error.headers
            }
            code = (error.reason or "error").lower().replace(" ", "_")
            if isinstance(error, web.HTTPNotFound):
                code = "unknown_path"  # NotFound is of what was asked for
            return Problem(error.status, code, error.reason, headers)
        case UsageError():
            return Problem(400, "bad_request", error.message)
        case TermsDiffer():
            return Problem(409, error.code, error.message)
        case NotFound():
            return Problem(404, error.code, error.message)
        case LedgerUnavailable():
            return Problem(503, error.code, error.message, {"Retry-After": str(RETRY_AFTER_S)})
        case ConsumerError():
            log.warning("query_refused", code=error.code)
            return Problem(500, error.code, "the ledger refused")
        case _:
            log.exception("query_failed", error=type(error).__name__)
            return Problem(500, "internal_error", "something went wrong here; the log says what")


@web.middleware
async def errors(request: web.Request, handler: WebHandler) -> web.StreamResponse:
    """Every error as JSON."""
    try:
        return await handler(request)
    except TermsDiffer as error:
        said = {"code": error.code, "message": error.message, "differing": error.differing}
        return answer({"error": said}, 409)
    except Exception as error:  # noqa: BLE001 - every one has an answer, and what is unexpected is logged
        found = problem_of(error)
        return problem(found.status, found.code, found.message, dict(found.headers))


def bearer(token: str | None) -> Middleware:
    """Ask for `Authorization: Bearer <token>`, compared in constant time; without a token nothing is asked."""
    wanted = hashlib.sha256(token.encode()).digest() if token else None

    @web.middleware
    async def check(request: web.Request, handler: WebHandler) -> web.StreamResponse:
        if wanted is not None:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            found = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
            if not hmac.compare_digest(found, wanted) or scheme.lower() != "bearer":
                headers = {"WWW-Authenticate": 'Bearer realm="consumer"'}
                return problem(401, "unauthorized", "this needs the API token", headers)
        return await handler(request)

    return check


FORWARDED = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP")
"""What a proxy says of whom it passes on."""
FORM_TYPES = frozenset({"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})


def guard(token: str | None) -> Middleware:
    """Without a token, who may ask is who is on this machine: so nobody may ask through a browser there, or a proxy. A
    name that merely leads to this machine is what a rebinding attack uses, and a page of another site says so in
    `Origin` or `Sec-Fetch-Site`; what a form can send is refused in any case."""

    @web.middleware
    async def check(request: web.Request, handler: WebHandler) -> web.StreamResponse:
        if token is None and not _is_own(request):
            return problem(
                403, "loopback_only", "without a token only programs of this machine are answered, not through a proxy"
            )
        if request.method not in ("GET", "HEAD") and request.content_type in FORM_TYPES:
            return problem(415, "unsupported_media_type", "the content type must be application/json")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            return problem(415, "unsupported_media_type", "the body must come as it is, not compressed")
        return await handler(request)

    return check


def _is_own(request: web.Request) -> bool:
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
    is_same = origin is None or origin == f"{request.scheme}://{request.host}"
    return is_same and site in ("none", "same-origin") and is_of_this_machine(request)


def is_of_this_machine(request: web.Request) -> bool:
    """Whether it came by a name of this machine, and not by one that merely leads here (a rebinding attack's); and not
    through a proxy on this machine that names itself, and may give everybody's request that name."""
    return is_loopback(_named(request.host)) and not any(name in request.headers for name in FORWARDED)


def _named(host: str) -> str:
    """The name in a header `Host`; empty where it is none."""
    try:
        return URL(f"http://{host}").host or ""
    except ValueError:
        return ""


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError
