"""The web application: authentication, limits, idempotency, faults - and no traceback to anyone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from consumer.sandbox.api.endpoints import ENDPOINTS, Answer, Call, Endpoint, answer_text
from consumer.sandbox.api.idempotency import Idempotency
from consumer.sandbox.api.openapi import openapi_document
from consumer.sandbox.checkout.routes import add_checkout_routes
from consumer.sandbox.control.routes import add_control_routes
from consumer.sandbox.errors import Refusal, SandboxFull, SandboxMisconfigured, StorageBroken, problem_body
from consumer.sandbox.simulator import Simulator

MAX_BODY_BYTES = 256 * 1024
REALM = "payments"
SANDBOX: web.AppKey[Simulator] = web.AppKey("sandbox")

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_web(sandbox: Simulator) -> web.Application:
    """Every address of the sandbox."""
    application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_guard])
    application[SANDBOX] = sandbox
    for endpoint in ENDPOINTS:
        application.router.add_route(endpoint.method, endpoint.path, _handler(sandbox, endpoint))
    document = openapi_document()

    async def openapi(_request: web.Request) -> web.Response:
        return web.json_response(document)

    application.router.add_get("/openapi.json", openapi)
    add_checkout_routes(application, sandbox)
    add_control_routes(application, sandbox)
    return application


def _handler(sandbox: Simulator, endpoint: Endpoint) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await _serve(sandbox, endpoint, request)

    return handle


async def _serve(sandbox: Simulator, endpoint: Endpoint, request: web.Request) -> web.StreamResponse:
    """One v1 request: limits by address, credentials, limits by application, faults, the endpoint itself."""
    engine = sandbox.engine
    engine.run_due()
    body = await request.read() if request.can_read_body else b""
    engine.limits.address(request.remote or "unknown")
    application = engine.applications.authenticate(request.headers.get("Authorization"))
    write = endpoint.method == "POST"
    engine.limits.request(application, write=write)
    faulty = await _api_fault(sandbox)
    if faulty is not None:
        return faulty
    if not write and body:
        raise Refusal("validation_failed", "A GET takes no body.")
    if engine.assumptions.text("unknown_parameters") == "refuse":
        _check_parameters(endpoint, [name for name, _ in request.query.items()])
    call = Call(engine, application, sandbox.link, dict(request.match_info), request.query, body)
    try:
        answer = _run_write(sandbox, endpoint, request, call) if write else endpoint.run(call)
    finally:
        sandbox.save()
        sandbox.sender.wake()
    if engine.faults.strikes("lost_response"):
        return _cut(request)
    return web.Response(status=answer.status, text=answer_text(answer), content_type="application/json")


def _check_parameters(endpoint: Endpoint, given: list[str]) -> None:
    """Raises validation_failed for a parameter that the endpoint does not have, or that is there twice."""
    for name in given:
        if name not in endpoint.parameters or given.count(name) > 1:
            what = "Repeated" if name in endpoint.parameters else "Unknown"
            raise Refusal("validation_failed", f"{what} parameter: {name[:100]}", field=name[:100])


def _run_write(sandbox: Simulator, endpoint: Endpoint, request: web.Request, call: Call) -> Answer:
    """A POST: media type, Idempotency-Key, then the endpoint; the answer is kept under the key (case X31)."""
    if call.body and request.content_type != "application/json":
        raise Refusal("unsupported_media_type")
    idempotency = Idempotency(sandbox.engine)
    key = idempotency.key(request.headers.get("Idempotency-Key"))
    digest = hashlib.sha256(call.body).hexdigest()
    place = f"{endpoint.method} {request.path}"
    known = idempotency.known(call.app_id, key, place, digest)
    if known is not None:
        return known
    answer = endpoint.run(call)
    idempotency.keep(call.app_id, key, place, digest, answer, without_url=endpoint.number == 2)
    return answer


async def _api_fault(sandbox: Simulator) -> web.StreamResponse | None:
    """A fault instead of an answer, if one strikes (case X66). Slowness passes on."""
    faults = sandbox.engine.faults
    if faults.number("api_slow_s"):
        await asyncio.sleep(faults.number("api_slow_s"))
    if faults.strikes("unauthorized"):
        raise Refusal("invalid_api_credentials")
    if faults.strikes("rate_limited"):
        raise Refusal("rate_limited", retry_after_s=int(faults.number("retry_after_s")))
    if faults.strikes("server_error"):
        raise Refusal("service_unavailable")
    if faults.strikes("html"):
        page = (
            "<!doctype html><html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>"
        )
        return web.Response(status=502, text=page, content_type="text/html")
    return None


def _cut(request: web.Request) -> web.Response:
    """The request was carried out, its answer never arrives: the connection is closed."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=200)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every problem becomes an answer in the documented shape; what is unexpected is logged, not shown."""
    sandbox = request.app[SANDBOX]
    try:
        return await handler(request)
    except Refusal as refusal:
        return refusal_answer(sandbox, refusal)
    except SandboxMisconfigured as error:
        return refusal_answer(sandbox, Refusal("validation_failed", str(error)))
    except SandboxFull:
        return refusal_answer(sandbox, Refusal("service_unavailable", "The sandbox is full; reset it."))
    except web.HTTPMethodNotAllowed as error:
        answer = refusal_answer(sandbox, Refusal("method_not_allowed"))
        answer.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        return answer
    except web.HTTPRequestEntityTooLarge:
        return refusal_answer(sandbox, Refusal("payload_too_large"))
    except web.HTTPNotFound:
        return refusal_answer(sandbox, Refusal("not_found"))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return refusal_answer(sandbox, Refusal("validation_failed", "The request is not valid HTTP."))
    except (asyncio.CancelledError, ConnectionError):
        raise
    except StorageBroken:
        logger.exception("the state could not be saved")
        return refusal_answer(sandbox, Refusal("internal_error"))
    except Exception:  # the last line of defence: no traceback leaves the house
        logger.exception("unexpected problem at %s %s", request.method, request.path)
        return refusal_answer(sandbox, Refusal("internal_error"))


def refusal_answer(sandbox: Simulator, refusal: Refusal) -> web.Response:
    """The HTTP answer of a refusal, with the headers its code brings."""
    assumptions = sandbox.engine.assumptions
    request_id = sandbox.engine.world.new_id("request")
    code = refusal.problem_code
    status = refusal.problem.status
    if code in ("price_not_found", "price_archived", "product_archived", "price_type_mismatch"):
        status = assumptions.status("price_error_status")
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = f'Basic realm="{REALM}"'
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    if code == "not_found" and assumptions.text("not_found_answer") != "json":
        return _other_not_found(assumptions.text("not_found_answer"), refusal)
    body = problem_body(code, status, refusal.message, request_id, refusal.field)
    return web.Response(
        status=status, text=json.dumps(body, ensure_ascii=False), content_type="application/json", headers=headers
    )


def _other_not_found(shape: str, refusal: Refusal) -> web.Response:
    if shape == "html":
        return web.Response(status=404, text="<!doctype html><h1>Not Found</h1>", content_type="text/html")
    return web.json_response({"statusCode": 404, "message": refusal.message}, status=404)
