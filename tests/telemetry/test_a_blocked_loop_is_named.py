"""LoopWatch: a blocked event loop is noticed while it is blocked, and named."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from consumer.telemetry import loop_watch
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


def test_it_ends_with_its_loop_where_nobody_stops_it() -> None:
    async def leaves() -> None:
        LoopWatch(interval_s=0.01).start()

    before = set(threading.enumerate())
    asyncio.run(leaves())
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert not set(threading.enumerate()) - before


async def test_a_loop_that_comes_late_each_time_is_slow_until_it_comes_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_watch, "SLOW_LAG_S", 0.05)
    monkeypatch.setattr(loop_watch, "SLOW_FOR_S", 0.5)
    watch = LoopWatch(interval_s=0.01, blocked_after_s=30)
    watch.start()
    assert watch.slow() is None
    time.sleep(0.6)  # noqa: ASYNC251 - held up once
    await asyncio.sleep(0)
    assert watch.slow() is None, "for a moment only, as far as anybody knows"
    began = time.monotonic()
    while (slow := watch.slow()) is None:
        assert time.monotonic() - began < 20
        time.sleep(0.1)  # noqa: ASYNC251 - as a process that gets no processor
        await asyncio.sleep(0)
    assert "its loop comes 0." in slow.sentence()
    await eventually(lambda: watch.slow() is None, within_s=20, every_s=0.2, what="it comes in time again")
    await watch.stop()
