"""The demo: everything in one process in a temporary folder, against the sandbox; named scenarios, proven outcomes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from consumer.cli.bootstrap import stop_on_signals
from consumer.cli.developing.demo.scenarios import SCENARIOS, Scenario
from consumer.cli.developing.demo.stories import STORIES
from consumer.cli.developing.demo.world import Check, World, open_world
from consumer.cli.output import Output
from consumer.errors import UsageError

SCENARIO_LIMIT_S = 60.0


async def play(output: Output, *, keep: bool = False, only: Sequence[str] | None = None) -> int:
    """Play the scenarios (or `only` these); 0 when every outcome is as expected, else 1. Raises UsageError."""
    chosen = _chosen(only)
    stop = stop_on_signals()
    checks: list[Check] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="consumer-demo-")))
        world = await open_world(stack, folder)
        for scenario in chosen:
            if stop.is_set():
                break
            output.line(f"\n{scenario.name}: {scenario.text}")
            for check in await _played(world, scenario):
                checks.append(check)
                output.line(check.shown())
        good = all(check.good for check in checks) and not stop.is_set()
        failed = sum(not check.good for check in checks)
        output.line(f"\n{len(checks) - failed} of {len(checks)} outcomes as expected")
        output.document({"good": good, "checks": [check.document() for check in checks], "addresses": world.addresses})
        if keep and not stop.is_set():
            for name, address in world.addresses.items():
                output.line(f"{name}: {address}")
            await stop.wait()
    return 0 if good else 1


async def _played(world: World, scenario: Scenario) -> list[Check]:
    try:
        async with asyncio.timeout(SCENARIO_LIMIT_S):
            return await scenario.play(world)
    except TimeoutError:
        return [Check(scenario.name, f"to end within {SCENARIO_LIMIT_S:g} s", "did not end")]


def _chosen(only: Sequence[str] | None) -> Sequence[Scenario]:
    everything = (*SCENARIOS, *STORIES)
    if not only:
        return everything
    known = {scenario.name: scenario for scenario in everything}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise UsageError(f"no such scenario: {unknown[0]}; there are {', '.join(known)}")
    return [known[name] for name in only]
