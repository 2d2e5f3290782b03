"""A handler that does nothing, by the CPU time of the worker's process: an effect against a consumer that commits once
for each message; a transactional one against the insert of the rows that it leaves, which is the limit."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from consumer.events import Event
from consumer.plugin import Context, declared, handles
from consumer.work.registry import Registry
from tests.bench.job import limit, naive
from tests.bench.job.prepared import DATABASES, Job, url_of, worked_off
from tests.bench.ratio import Cost, Measured, Ratio, one_core

OURS, BASELINE, ROUNDS = 24_000, 1_000, 3
EFFECT_BAR, TRANSACTIONAL_BAR = 3.5, 0.65


@handles("order.paid", name="bench:call", concurrency=64)
async def call(event: Event, ctx: Context) -> None:
    """Nothing."""


@handles("order.paid", name="bench:note", transactional=True)
async def note(event: Event, ctx: Context) -> None:
    """Nothing."""


def measure(folder: Path, postgres: str) -> list[Measured]:
    """Alternate between each and what it is measured against; orders for a second of CPU."""
    one_core(0)
    found: list[Measured] = []
    for name in DATABASES:
        effects = [_effect(folder, name, postgres) for _ in range(ROUNDS + 1)][1:]  # the first warms up
        notes = [_transactional(folder, name, postgres) for _ in range(ROUNDS + 1)][1:]
        found += [
            Ratio(f"effect that does nothing: {name}", "a consumer that commits per message", effects, EFFECT_BAR),
            Ratio(f"transactional, does nothing: {name}", "the insert of its rows", notes, TRANSACTIONAL_BAR),
        ]
    return found


def _effect(folder: Path, name: str, postgres: str) -> tuple[float, float]:
    ours = uvloop.run(worked_off(folder, url_of(name, folder, postgres), job_of(call, OURS)))
    baseline = uvloop.run(naive.effect(folder, url_of(name, folder, postgres), BASELINE))
    return _rates(ours, baseline)


def _transactional(folder: Path, name: str, postgres: str) -> tuple[float, float]:
    url = url_of(name, folder, postgres)
    ours = uvloop.run(worked_off(folder, url, job_of(note, OURS)))
    rows = uvloop.run(limit.rows_of(url, OURS))
    return _rates(ours, uvloop.run(limit.inserted(folder, url_of(name, folder, postgres), OURS, rows)))


def _rates(*costs: Cost) -> tuple[float, float]:
    ours, baseline = costs
    return ours.per_cpu_second, baseline.per_cpu_second


def job_of(function: Callable[[Event, Context], Coroutine[Any, Any, None]], orders: int) -> Job:
    """So many webhooks for this handler alone."""
    handlers: Sequence[Any] = [declared(function)]
    registry = Registry([replace(handler, plugin="bench") for handler in handlers])
    return Job(registry=registry, orders=orders, events_each=1, registered=False)
