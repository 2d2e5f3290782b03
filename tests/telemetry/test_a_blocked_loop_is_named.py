"""LoopWatch: a blocked event loop is noticed while it is blocked, and named."""

from __future__ import annotations

import asyncio
import threading

from consumer.telemetry.loop_watch import Blocked, LoopWatch
from consumer.telemetry.metrics import Metrics
from tests.support.ports import eventually


async def test_a_blocked_loop_is_named_while_it_stands_still() -> None:
    seen: list[Blocked] = []
    noticed = threading.Event()

    def notice(blocked: Blocked) -> None:
        seen.append(blocked)
        noticed.set()

    metrics = Metrics()
    watch = LoopWatch(metrics, interval_s=0.01, blocked_after_s=0.05, on_blocked=notice)

    async def greedy_handler() -> None:
        assert noticed.wait(20), "the loop stood still and nobody noticed"

    watch.start()
    watch.start()
    await asyncio.create_task(greedy_handler(), name="greedy")
    # Noticed after 0.05 s by the thread's count, which begins a little before the heartbeat's own.
    await eventually(lambda: watch.lag_s > 0.025, within_s=20, what="the heartbeat was late")
    await watch.stop()
    await watch.stop()
    assert seen[0].task == "greedy"
    assert "greedy_handler" in seen[0].at
    assert seen[0].seconds >= 0.05
    assert metrics.registry.get_sample_value("consumer_loop_blocked_total") == len(seen)


async def test_a_free_loop_is_left_alone() -> None:
    metrics = Metrics()
    watch = LoopWatch(metrics, interval_s=0.005, blocked_after_s=30)
    watch.start()
    while metrics.registry.get_sample_value("consumer_loop_lag_seconds") == 0.0:  # noqa: ASYNC110 - waits for a figure
        await asyncio.sleep(0.005)
    await watch.stop()
    assert metrics.registry.get_sample_value("consumer_loop_blocked_total") == 0


async def test_stopping_before_starting_is_safe() -> None:
    await LoopWatch().stop()
