"""An hour of business in minutes: the sandbox's clock is driven, each of its seconds brings its events, and every
webhook falls due, is sent and is sent again when the sandbox's own schedule says.

What is compressed is only the sandbox's time. A consumer that accepts gets every webhook really, before the next
second. To one that is away attempts are made as far as they fit into the driven second; the rest is recorded as failed
without being sent, because in a real second it would have been sent, and failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from consumer.sandbox import SandboxConfig
from tests.promises.deployment import Deployment

SENT_AT_ONCE = 16
TAKEN_WITHIN_S = 60.0
SAY_EVERY_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Hour:
    """`seconds` of the sandbox's time with `per_s` events in each; one purchase in `subscription_every` is a
    subscription, the others are orders. Each purchase is two events."""

    seconds: int = 3600
    per_s: int = 50
    subscription_every: int = 200

    @property
    def events(self) -> int:
        """How many events it brings, if `per_s` is even."""
        return self.seconds * self.per_s

    def config(self) -> SandboxConfig:
        """A sandbox so far behind that it arrives in the present when the hour is over: nobody sees the future."""
        return SandboxConfig(
            seed=1, start=datetime.now(UTC) - timedelta(seconds=self.seconds), max_records=max(500_000, 4 * self.events)
        )


@dataclass(frozen=True, kw_only=True)
class Passed:
    """How an hour went: what happened at the service, in how many real seconds, and what became of the webhooks."""

    events: int
    orders: int
    subscriptions: int
    seconds: float
    attempts: int
    unsent: int


async def live_through(
    found: Deployment, hour: Hour, *, accepted: bool, wait_s: float, say: Callable[[str], None]
) -> Passed:
    """Drive the sandbox through the hour. `accepted`: the endpoint takes every webhook, and a second that it does not
    take within a minute fails; else a driven second waits up to `wait_s` for attempts to fail by themselves."""
    sandbox = found.sandbox
    events, deliveries, sender = sandbox.engine.world.events, sandbox.engine.deliveries, sandbox.sender
    sandbox.engine.faults.set({"parallel": SENT_AT_ONCE})
    began_at, began, said = sandbox.clock.now(), time.monotonic(), time.monotonic()
    before = (len(events), len(found.paid), len(found.subscribed), sender.sent)
    unsent, purchases = 0, 0
    for second in range(1, hour.seconds + 1):
        while len(events) - before[0] < second * hour.per_s:
            purchases += 1
            if purchases % hour.subscription_every:
                found.pay_order()
            else:
                found.subscribe()
        ahead = began_at + timedelta(seconds=second) - sandbox.clock.now()
        sandbox.engine.advance(max(0.0, ahead.total_seconds()))
        drained = await sender.drained(TAKEN_WITHIN_S if accepted else wait_s)
        if accepted:
            assert drained, f"the webhooks of a second were not taken within {TAKEN_WITHIN_S:.0f} s"
        else:
            for application in deliveries.ready():
                while (delivery := deliveries.take(application)) is not None:
                    deliveries.record(delivery.id, status=None, error="away")
                    unsent += 1
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            say(f"{second} of {hour.seconds} seconds have passed, {len(events) - before[0]:,} events")
    return Passed(
        events=len(events) - before[0],
        orders=len(found.paid) - before[1],
        subscriptions=len(found.subscribed) - before[2],
        seconds=time.monotonic() - began,
        attempts=sender.sent - before[3],
        unsent=unsent,
    )
