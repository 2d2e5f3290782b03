"""A warehouse to try a handler with, no part of the service: it ships once per `Idempotency-Key`, as a real one does.

Kept in memory, for the run of the sandbox: the newest parcels only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from consumer.sandbox.errors import Refusal
from consumer.sandbox.simulator import Simulator

PARCELS_MAX = 1000
KEY_MAX_CHARS = 255

Body = dict[str, Any]
Action = Callable[[Simulator, web.Request, Body], Awaitable[Any]]


async def _ship(sandbox: Simulator, request: web.Request, body: Body) -> Any:
    """A parcel for each key; the same key again is answered with the parcel that left, and ships nothing."""
    key = request.headers.get("Idempotency-Key", "")
    if not 1 <= len(key) <= KEY_MAX_CHARS:
        raise Refusal("validation_failed", "Send ctx.idempotency_key as Idempotency-Key.", field="Idempotency-Key")
    parcels = sandbox.parcels
    parcel = parcels.get(key)
    if parcel is None:
        parcel = parcels[key] = {"idempotency_key": key, "asked": 0, "content": body}
        if len(parcels) > PARCELS_MAX:
            del parcels[next(iter(parcels))]
    parcel["asked"] += 1
    return parcel


async def _shipped(sandbox: Simulator, _request: web.Request, _body: Body) -> Any:
    """Oldest first; `asked` says how often each was asked for."""
    return {"count": len(sandbox.parcels), "items": list(sandbox.parcels.values())}


ROUTES: tuple[tuple[str, str, Action], ...] = (("POST", "/parcels", _ship), ("GET", "/parcels", _shipped))
