"""A backlog of 200,000 webhooks that waited in the log: `work` does the main job of all of them, and its memory stays
what it was. Its resident memory is looked at every second, from the first order on until the last effect is stored.

It is two stages: what is asked for lies in the log behind the webhooks. First these are taken in; then, when as many
events came in as there are webhooks, the requests, and each has its effect. The second needs more than the first, and
neither may need more as it goes on."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
from sqlalchemy import text

from consumer.broker import open_broker
from consumer.ledger import Database
from tests.bench.job.prepared import webhooks
from tests.bench.processes.idle import memory_mib
from tests.bench.processes.stacks import both, upgraded
from tests.bench.ratio import Bound, Measured, processor_s
from tests.support.load import SECRET
from tests.support.merchant.plugin import install_plugin
from tests.support.process import ConsumerProcess, ended
from tests.work.workshop import message

ORDERS = int(os.environ.get("BENCH_BACKLOG", "200000"))
STAGES = ("intake", "effects")
MOST_MIB, GROWS_MOST = 200.0, 1.1
EVERY_S, WITHIN_S, PUBLISHED_AT_ONCE = 1.0, 3_600.0, 5_000
PLUGIN = """
from consumer.plugin import Context, Event, handles

@handles("fulfilment.requested", concurrency=64)
async def ship(event: Event, ctx: Context) -> None:
    pass
"""
_NEWEST, _COUNT = text("SELECT max(seq) FROM events"), text("SELECT count(*) FROM events")
_WAITS = text("SELECT seq FROM runs WHERE status = 'retrying' LIMIT 1")


def measure(folder: Path, postgres: str, kafka: str) -> list[Measured]:
    """Both stacks, one after the other."""
    found: list[Measured] = []
    for name, place, urls in both(folder, postgres, kafka):
        stages = asyncio.run(_worked_off(place, urls, name))
        what = f"backlog of {ORDERS}: {name}, memory"
        parts = {"in all": [*stages[0], *stages[1]], **dict(zip(STAGES, stages, strict=True))}
        grown = {part: _grown(f"{name}: {part}", seen) for part, seen in parts.items()}
        found.append(Bound(what, max(parts["in all"]), MOST_MIB, "MiB"))
        for part, times in grown.items():
            found.append(Bound(f"{what}, {part}, last quarter to second", times, GROWS_MOST, "times"))
    return found


def _grown(what: str, seen: Sequence[float]) -> float:
    if (quarter := len(seen) // 4) == 0:
        raise RuntimeError(f"{what} took too little time; a larger BENCH_BACKLOG is needed")
    return max(seen[-quarter:]) / max(seen[quarter : 2 * quarter])


async def _worked_off(folder: Path, urls: Mapping[str, str], name: str) -> tuple[list[float], list[float]]:
    """MiB, second by second, of each stage."""
    prefix = f"backlog-{uuid.uuid4().hex[:8]}"
    environ = {
        **urls,
        "CONSUMER_TOPIC_PREFIX": prefix,
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
        "CONSUMER_HANDLER_OPTIONS": orjson.dumps({"fulfilment": {"matching": "off"}}).decode(),
        **install_plugin(folder, "bench_plugin", PLUGIN),
    }
    await upgraded(environ)
    seen: tuple[list[float], list[float]] = ([], [])
    work, database = ConsumerProcess("work", environ, folder), Database(urls["CONSUMER_DATABASE_URL"])
    with ended(work):  # it makes its topics
        work.spawn()
        await work.ready()
    await _publish(urls["CONSUMER_BROKER_URL"], f"{prefix}.events")
    with ended(work):
        began = time.monotonic()
        work.spawn()
        await work.ready()
        while not await _is_done(database, newest := await _newest(database)):
            seen[newest > ORDERS].append(memory_mib(work.pid))
            if time.monotonic() - began > WITHIN_S:
                raise RuntimeError(f"{name}: the backlog is not worked off within {WITHIN_S} s")
            await asyncio.sleep(EVERY_S)
        rate, cpu = ORDERS / (time.monotonic() - began), processor_s(work.pid) / ORDERS * 1e6
        shown = "; ".join(", ".join(f"{one:.0f}" for one in stage[:: max(1, len(stage) // 8)]) for stage in seen)
        sys.stdout.write(f"{name}: {rate:.0f} orders a second, {cpu:.0f} ms of CPU per 1,000; MiB: {shown}\n")
        sys.stdout.flush()
    await database.stop()
    return seen


async def _publish(url: str, topic: str) -> None:
    broker = open_broker(url)
    await broker.start()
    try:
        for first in range(0, ORDERS, PUBLISHED_AT_ONCE):
            some = webhooks(min(PUBLISHED_AT_ONCE, ORDERS - first), first)
            await broker.publish_many(topic, [message(event) for event in some])
    finally:
        await broker.stop()


async def _newest(database: Database) -> int:
    async with database.reading() as session:
        return (await session.execute(_NEWEST)).scalar_one() or 0


async def _is_done(database: Database, newest: int) -> bool:
    """Whether every webhook and every request came in and nothing waits. What is counted is asked last."""
    async with database.reading() as session:
        if newest < 2 * ORDERS or (await session.execute(_WAITS)).first():
            return False
        return bool((await session.execute(_COUNT)).scalar_one() >= 2 * ORDERS)
