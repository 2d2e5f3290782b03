"""A client left to list 30,000 events uses the request budget and draws no 429 (driven clock)."""

from __future__ import annotations

import pytest

from consumer.payments import Budget, Limit, Limits, MemoryBudgetStore, Priority, Scope
from tests.payments.against_sandbox.stage import stage
from tests.payments.budget.limiters import LIMITERS
from tests.payments.support import Bench, InstantClock, Reply, ScriptedService, Seen, bench, error_reply

EVENTS = 30_000
MANY_EVENTS = 120_000


def limited_events(service: ScriptedService, clock: InstantClock, model: str, latency_s: float, total: int) -> None:
    """Serve so many events under the limits of the spec, as that model counts them, each answer taking its time."""
    per_ip, per_application = LIMITERS[model](300), LIMITERS[model](600)

    def answer(seen: Seen) -> Reply:
        clock.elapsed_s += latency_s
        for limiter in (per_ip, per_application):
            wait = limiter.refuse(clock.elapsed_s)
            if wait is not None:
                return error_reply(429, "rate_limited", retry_after=str(int(wait) + 1))
        start = int(seen.query.get("cursor", "evt_0").removeprefix("evt_"))
        end = min(start + int(seen.query["limit"]), total)
        items = [{"id": f"evt_{number}", "type": "order.paid"} for number in range(start + 1, end + 1)]
        return Reply(200, {"items": items, "next_cursor": f"evt_{end}" if end < total else None})

    service.answering = answer


async def drained(b: Bench) -> list[int]:
    return [int(str(event.id).removeprefix("evt_")) async for event in b.client.events.iterate()]


@pytest.mark.parametrize(
    ("total", "priority", "latency_s", "model"),
    [(EVENTS, Priority.BACKFILL, 0.05, model) for model in LIMITERS]
    + [(EVENTS, Priority.BACKFILL, 0.15, "sliding window"), (EVENTS, Priority.LIVE, 0.0, "sliding window")]
    + [
        pytest.param(MANY_EVENTS, Priority.BACKFILL, 0.05, model, marks=pytest.mark.slow)
        for model in ("sliding window", "token bucket")
    ],
)
async def test_a_long_walk_uses_the_budget_and_draws_no_429(
    service: ScriptedService, total: int, priority: Priority, latency_s: float, model: str
) -> None:
    # case: C15, B23
    async with bench(service.base_url, priority=priority) as b:
        limited_events(service, b.clock, model, latency_s, total)
        assert await drained(b) == list(range(1, total + 1))
        assert {attempt.status for attempt in b.attempts} == {200}, "no 429"
        elapsed_s = b.clock.elapsed_s
    assert len(service.seen) == total // 100
    used = len(service.seen) / (300 * elapsed_s / 60)
    assert used >= 0.95, f"{used:.1%} of the budget in {elapsed_s:.0f} s"


@pytest.mark.slow
async def test_a_walk_that_knows_no_limits_does_draw_429s_and_still_arrives(service: ScriptedService) -> None:
    # case: C5, B24
    wide = Limit(requests=100_000, window_s=60)
    clock = InstantClock()
    boundless = Budget(
        MemoryBudgetStore(clock), Scope(ip="one", application="a"), clock, Limits(ip=wide, application_reads=wide)
    )
    async with bench(service.base_url, priority=Priority.BACKFILL, clock=clock, budget=boundless) as b:
        limited_events(service, clock, "sliding window", 0.001, MANY_EVENTS)
        assert await drained(b) == list(range(1, MANY_EVENTS + 1))
        assert 429 in {attempt.status for attempt in b.attempts}, "the models do refuse who sends too much"


@pytest.mark.slow
@pytest.mark.parametrize("window", ["sliding", "bucket", "fixed"])
async def test_30000_events_of_the_sandbox_under_its_limits(window: str) -> None:
    # case: C15, B23
    async with stage(limits=True, limit_window=window) as s:
        subscription = await s.subscribed()
        subscriptions = s.sandbox.engine.subscriptions
        while len(s.sandbox.engine.world.events) < EVENTS:
            subscriptions.renew(subscriptions.any(subscription))
        await s.sandbox.advance(61)  # the set-up's own requests leave every window
        walk = s.client.with_priority(Priority.BACKFILL)
        began, requests = s.sandbox.clock.now(), len(s.attempts)
        found = {event.id async for event in walk.events.iterate()}
        elapsed_s = (s.sandbox.clock.now() - began).total_seconds()
        assert len(found) == EVENTS
        assert {attempt.status for attempt in s.attempts[requests:]} == {200}, "no 429"
        used = (len(s.attempts) - requests) / (300 * elapsed_s / 60)
        assert used >= 0.95, f"{used:.1%} of the budget in {elapsed_s:.0f} s"
