"""Named scenarios: the service's side of a story, played against the engine and its clock (cases, Named scenarios)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from consumer.sandbox.errors import Refusal
from consumer.sandbox.simulator import Simulator

SCENARIOS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {}


async def play(sandbox: Simulator, name: str, **options: Any) -> dict[str, Any]:
    """Run one. Raises not_found for an unknown name."""
    if name not in SCENARIOS:
        raise Refusal("not_found", f"no such scenario; there are {', '.join(SCENARIOS)}")
    return await SCENARIOS[name](sandbox, **options)
