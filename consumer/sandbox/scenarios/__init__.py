"""Named scenarios: the service's side of a story, played against the engine and its clock (cases, Named scenarios)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from consumer.sandbox.errors import Refusal
from consumer.sandbox.scenarios import operations, orders, subscriptions
from consumer.sandbox.scenarios.stage import Stage
from consumer.sandbox.simulator import Simulator

Story = Callable[[Stage], Awaitable[None]]

SCENARIOS: dict[str, Story] = orders.STORIES | subscriptions.STORIES | operations.STORIES


async def play(simulator: Simulator, name: str, *, application: str | None = None, count: int = 3) -> dict[str, Any]:
    """Run one for an application (default: the seeded one); `count` is how many orders an outage is long.

    Answers what was made, and the service's own final state as `expected`. Raises not_found for an unknown name.
    """
    if name not in SCENARIOS:
        raise Refusal("not_found", f"no such scenario; there are {', '.join(SCENARIOS)}")
    stage = Stage(simulator, application or simulator.config.app_id, count)
    await SCENARIOS[name](stage)
    simulator.save()
    return {"scenario": name} | stage.result()
