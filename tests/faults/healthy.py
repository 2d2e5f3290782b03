"""Healthy: an hour under load in which nothing is wrong. Whatever `status` says then but healthy is a false alarm."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.faults.play import green, status_of
from tests.faults.scene import Scene

ASK_EVERY_S = 10.0
SUBSCRIBE_EVERY_S = 20.0
SHIPPED_WITHIN_S = 120.0


@dataclass
class Healthy:
    """What was asked, and what was answered that was not green: the codes, each with how often."""

    scene: str
    minutes: float
    per_s: float
    asked: int = 0
    paid: int = 0
    subscribed: int = 0
    alarms: Counter[str] = field(default_factory=Counter)

    @property
    def row(self) -> str:
        """Its line of the table."""
        said = ", ".join(f"`{code}` {count}" for code, count in sorted(self.alarms.items())) or "none"
        bought = f"{self.paid} orders, {self.subscribed} subscriptions"
        return f"| {self.scene} | {self.minutes:g} | {self.per_s:g} | {bought} | {self.asked} | {said} |"


async def stay_healthy(scene: Scene, minutes: float, per_s: float) -> Healthy:
    """Customers buy and subscribe, steadily; somebody asks how things stand. Raises AssertionError when an order was
    not shipped, once."""
    told = Healthy(scene.name, minutes, per_s)
    # As shops run it: the one second between two walks, which hastens the rows, would spend the budget on lists.
    await scene.restart("sync", CONSUMER_SYNC_INTERVAL_S="")
    await green(scene)
    until = time.monotonic() + 60 * minutes
    async with scene.found.busy(orders_per_s=per_s, subscribe_every_s=SUBSCRIBE_EVERY_S):
        while time.monotonic() < until:
            found = await status_of(scene)
            told.asked += 1
            told.alarms.update(str(one["code"]) for one in found["findings"])
            for one in found["findings"]:
                print(f"    after {told.asked} answers: {one['code']}: {one['text'][:200]}", flush=True)
            await asyncio.sleep(ASK_EVERY_S)
    told.paid, told.subscribed = len(scene.found.paid), len(scene.found.subscribed)
    await scene.found.shipped(within_s=SHIPPED_WITHIN_S)
    scene.found.assert_one_parcel_each()
    return told
