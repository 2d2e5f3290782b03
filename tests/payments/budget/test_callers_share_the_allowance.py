"""The budget at work: several callers, processes and applications on one driven clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from consumer.payments import Budget, BudgetExhausted, CallKind, MemoryBudgetStore, Priority, Scope
from tests.payments.budget.limiters import LIMITERS, most_in_a_window
from tests.payments.support import TurnClock

Trace = list[tuple[float, str]]


@pytest.fixture
def clock() -> TurnClock:
    return TurnClock()


def budget(store: MemoryBudgetStore, clock: TurnClock, *, ip: str = "one", app: str = "a") -> Budget:
    return Budget(store, Scope(ip=ip, application=app), clock)


async def saturate(
    one: Budget, clock: TurnClock, trace: Trace, name: str, priority: Priority, kind: CallKind = CallKind.READ
) -> None:
    """Ask as fast as it is let."""
    while True:
        await one.acquire(kind, priority, max_wait_s=10_000)
        trace.append((clock.monotonic(), name))


async def steady(
    one: Budget, clock: TurnClock, trace: Trace, waits: list[float], name: str, priority: Priority, per_minute: float,
    kind: CallKind = CallKind.READ,
) -> None:  # fmt: skip
    """Ask at an even rate, and note how long each had to wait."""
    at = clock.monotonic()
    while True:
        at += 60 / per_minute
        await clock.sleep(max(0.0, at - clock.monotonic()))
        waits.append(await one.acquire(kind, priority, max_wait_s=10_000))
        trace.append((clock.monotonic(), name))


async def run(clock: TurnClock, seconds: float, *callers: Callable[[], Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.create_task(caller()) for caller in callers]
    try:
        await clock.run(*tasks, seconds=seconds)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("model", LIMITERS)
async def test_three_pods_behind_one_address_stay_within_its_limit(clock: TurnClock, model: str) -> None:
    # case: C16, C15
    store, trace = MemoryBudgetStore(clock), Trace()
    pods = [budget(store, clock) for _ in range(3)]
    await run(
        clock,
        300,
        *(
            lambda pod=pod, number=number: steady(pod, clock, trace, [], f"pod {number}", Priority.LIVE, 250)
            for number, pod in enumerate(pods)
        ),
    )
    times = [at for at, _ in trace]
    limiter = LIMITERS[model](300)
    assert all(limiter.refuse(at) is None for at in times), "zero 429"
    assert most_in_a_window(times) <= 300
    assert len(times) >= 0.95 * 5 * 300
    shares = Counter(name for _, name in trace)
    assert min(shares.values()) > 0.2 * len(times), "no pod is starved"


async def test_six_applications_share_the_merchants_writes(clock: TurnClock) -> None:
    # case: C17
    store, trace = MemoryBudgetStore(clock), Trace()
    apps = [budget(store, clock, ip=f"ip {number}", app=f"app {number}") for number in range(6)]
    await run(
        clock,
        300,
        *(
            lambda app=app, number=number: steady(
                app, clock, trace, [], str(number), Priority.LIVE, 100, kind=CallKind.WRITE
            )
            for number, app in enumerate(apps)
        ),
    )
    times = [at for at, _ in trace]
    assert most_in_a_window(times) <= 300
    assert len(times) >= 0.95 * 5 * 300
    assert len(Counter(name for _, name in trace)) == 6


async def test_live_calls_hardly_wait_beside_a_saturating_backfill(clock: TurnClock) -> None:
    # case: B23
    store, trace, waits = MemoryBudgetStore(clock), Trace(), list[float]()
    live, background = budget(store, clock), budget(store, clock)
    await run(
        clock,
        240,
        lambda: saturate(background, clock, trace, "backfill", Priority.BACKFILL),
        lambda: steady(live, clock, trace, waits, "live", Priority.LIVE, 100),
    )
    times = [at for at, _ in trace]
    assert most_in_a_window(times) <= 300
    assert len(times) >= 0.95 * 4 * 300
    assert len(waits) >= 396, "every live call is served"
    assert max(waits) < 1.0
    assert sum(name == "backfill" for _, name in trace) >= 0.85 * 4 * (300 - 100), "backfill gets what live leaves"


async def test_a_saturating_higher_class_leaves_the_lower_ones_nothing(clock: TurnClock) -> None:
    # case: B23
    store, trace = MemoryBudgetStore(clock), Trace()
    shared = budget(store, clock)
    classes = (Priority.RECONCILE, Priority.BACKFILL, Priority.REFRESH)
    await run(
        clock,
        150,
        *(lambda which=which: saturate(shared, clock, trace, which.name, which) for which in classes),
    )
    late = Counter(name for at, name in trace if at > 30)
    assert set(late) == {"REFRESH"}
    assert late["REFRESH"] >= 0.95 * 300 * 120 / 60


async def test_a_lower_class_gets_all_that_the_higher_ones_leave(clock: TurnClock) -> None:
    # case: B23
    store, trace, waits = MemoryBudgetStore(clock), Trace(), list[float]()
    shared = budget(store, clock)
    await run(
        clock,
        240,
        lambda: saturate(shared, clock, trace, "reconcile", Priority.RECONCILE),
        lambda: steady(shared, clock, trace, waits, "confirm", Priority.CONFIRM, 120),
        lambda: steady(shared, clock, trace, waits, "refresh", Priority.REFRESH, 60),
    )
    shares = Counter(name for _, name in trace)
    assert shares["confirm"] >= 472
    assert shares["refresh"] >= 236
    assert shares["reconcile"] >= 0.85 * 4 * (300 - 180)
    assert max(waits) < 1.5
    assert most_in_a_window([at for at, _ in trace]) <= 300


async def test_callers_of_one_class_are_served_in_their_order(clock: TurnClock) -> None:
    # case: B23
    shared = budget(MemoryBudgetStore(clock), clock)
    served: list[int] = []

    async def one(number: int) -> None:
        await shared.acquire(CallKind.READ, Priority.BACKFILL, max_wait_s=100)
        served.append(number)

    await run(clock, 60, *(lambda number=number: one(number) for number in range(60)))
    assert served == list(range(60))


async def test_who_would_wait_too_long_is_told_at_once_and_takes_nothing(clock: TurnClock) -> None:
    # case: C6
    shared = budget(MemoryBudgetStore(clock), clock)
    await shared.pause(CallKind.READ, 45)
    with pytest.raises(BudgetExhausted) as caught:
        await shared.acquire(CallKind.READ, Priority.LIVE, max_wait_s=10)
    assert caught.value.retry_after_s == pytest.approx(45)
    assert clock.monotonic() == 0
    assert await shared.predict_s(CallKind.READ, Priority.LIVE) == pytest.approx(45)
    assert await shared.predict_s(CallKind.TEST_EVENT, Priority.LIVE) == pytest.approx(45), (
        "it leaves by the same address"
    )


async def test_a_pause_of_test_events_holds_up_nothing_else(clock: TurnClock) -> None:
    # case: C34
    shared = budget(MemoryBudgetStore(clock), clock)
    await shared.pause(CallKind.TEST_EVENT, 1800)
    assert await shared.acquire(CallKind.READ, Priority.RECONCILE, max_wait_s=0) == 0
    assert await shared.acquire(CallKind.WRITE, Priority.RECONCILE, max_wait_s=0) == 0
    with pytest.raises(BudgetExhausted):
        await shared.acquire(CallKind.TEST_EVENT, Priority.LIVE, max_wait_s=10)


async def test_a_cancelled_waiter_takes_no_place_and_lets_the_next_one_in(clock: TurnClock) -> None:
    # case: C15
    shared = budget(MemoryBudgetStore(clock), clock)
    await shared.pause(CallKind.READ, 5)
    first = asyncio.create_task(shared.acquire(CallKind.READ, Priority.LIVE, max_wait_s=10))
    second = asyncio.create_task(shared.acquire(CallKind.READ, Priority.LIVE, max_wait_s=10))
    while not clock.sleepers:  # noqa: ASYNC110 - the clock under test is what tells
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await clock.run(second, seconds=20)
    assert second.result() == pytest.approx(5)
    before = await shared.predict_s(CallKind.READ, Priority.LIVE, 293)
    assert before == 0, "one place of 294 is taken, not two"
