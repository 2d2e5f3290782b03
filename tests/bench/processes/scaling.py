"""Several `work` processes on Kafka and PostgreSQL: what an order through an effect handler costs them together, in
CPU, with 1, 2 and 4 of them. It stays flat when none makes work for another. Beside it as many at the same time that
know nothing of each other, each with a log and a ledger of its own: those who share cores cost each other CPU, too. How
much more they do in a second than one is shown, and has a bar only where each of them, Kafka and PostgreSQL have a
core."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import text

from consumer.broker import open_broker
from consumer.ledger import Database
from consumer.ledger.handling import queue
from tests.bench.job.prepared import webhooks
from tests.bench.processes.stacks import upgraded
from tests.bench.ratio import Cost, Measured, Ratio, processor_s
from tests.support.load import SECRET
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.postgres import create_database
from tests.support.process import ConsumerProcess, ended
from tests.work.workshop import message

PROCESSES = (1, 2, 4)
GAIN = {2: 1.8, 4: 3.0}
FLAT = 0.8
ORDERS, WARM_UP, ROUNDS = 6_000, 300, 3
SERVERS = 2
WITHIN_S = 180.0
PLUGIN = """
from consumer.plugin import Context, Event, handles

@handles("order.paid", concurrency=64)
async def call(event: Event, ctx: Context) -> None:
    pass
"""


def measure(folder: Path, postgres: str, kafka: str) -> list[Measured]:
    """In turn; each on a ledger and a log of its own."""
    together: list[dict[int, Cost]] = []
    apart: list[dict[int, Cost]] = []
    for _ in range(ROUNDS):
        together.append({count: _together(folder, postgres, kafka, count) for count in PROCESSES})
        apart.append({count: _apart(folder, postgres, kafka, count) for count in PROCESSES[1:]})
    for name, rounds in (("work", together), ("work that share nothing", apart)):
        for count in rounds[0]:
            each = ", ".join(f"{one[count].cpu_ms_per_1000:.0f} ms at {one[count].rate:.0f}/s" for one in rounds)
            sys.stdout.write(f"{count} {name}: CPU of all for 1,000 orders {each}\n")
    return [one for count in PROCESSES[1:] for one in _ratios(count, together, apart)]


def _ratios(count: int, together: Sequence[dict[int, Cost]], apart: Sequence[dict[int, Cost]]) -> list[Measured]:
    cores = len(os.sched_getaffinity(0))
    bar = GAIN[count] if cores >= count + SERVERS else 0.0
    ours = [one[count].per_cpu_second for one in together]
    flat = list(zip(ours, (one[count].per_cpu_second for one in apart), strict=True))
    to_one = list(zip(ours, (one[1].per_cpu_second for one in together), strict=True))
    gain = [(one[count].rate, one[1].rate) for one in together]
    what = f"{count} work processes, orders"
    what_a_second = f"{what} a second"
    return [
        Ratio(f"{what} for a second of CPU, to as many", "as many at once that share nothing", flat, FLAT),
        Ratio(f"{what} for a second of CPU, to one", "one", to_one, FLAT),
        Ratio(what_a_second if bar else f"{what_a_second} (no bar: {cores} cores)", "one", gain, bar),
    ]


def _together(folder: Path, postgres: str, kafka: str, count: int) -> Cost:
    return asyncio.run(_cost(folder, create_database(postgres), kafka, count, ORDERS))


def _apart(folder: Path, postgres: str, kafka: str, count: int) -> Cost:
    """As many orders between them, each by a process with a ledger and a log of its own."""
    urls = [create_database(postgres) for _ in range(count)]

    async def all_at_once() -> list[Cost]:
        return await asyncio.gather(*(_cost(folder, url, kafka, 1, ORDERS // count) for url in urls))

    each = asyncio.run(all_at_once())
    return Cost(ORDERS, sum(one.cpu_s for one in each), max(one.wall_s for one in each))


async def _cost(folder: Path, url: str, kafka: str, count: int, orders: int) -> Cost:
    place = folder / uuid.uuid4().hex
    place.mkdir()
    prefix = f"scaling-{uuid.uuid4().hex[:8]}"
    environ = {
        "CONSUMER_DATABASE_URL": url,
        "CONSUMER_BROKER_URL": kafka,
        "CONSUMER_TOPIC_PREFIX": prefix,
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
        "CONSUMER_HANDLERS": "bench_plugin",
        **install_plugin(place, "bench_plugin", PLUGIN),
    }
    await upgraded(environ)
    workers = [ConsumerProcess("work", environ, place, f"work-{number}") for number in range(count)]
    with ended(*workers):
        for worker in workers:
            worker.spawn()
        for worker in workers:
            await worker.ready()
        return await _worked_off(url, kafka, f"{prefix}.events", [worker.pid for worker in workers], orders)


async def _worked_off(url: str, kafka: str, topic: str, pids: Sequence[int], orders: int) -> Cost:
    """After each of them did WARM_UP."""
    database, broker, warm_up = Database(url), open_broker(kafka), WARM_UP * len(pids)
    messages = [message(event) for event in webhooks(warm_up + orders)]
    await broker.start()
    try:
        await broker.publish_many(topic, messages[:warm_up], 60)
        await eventually(lambda: _is_done(database, warm_up), within_s=WITHIN_S, every_s=0.1)
        began_s, cpu_s = time.perf_counter(), sum(map(processor_s, pids))
        await broker.publish_many(topic, messages[warm_up:], 60)
        await eventually(lambda: _is_done(database, warm_up + orders), within_s=WITHIN_S, every_s=0.1)
        return Cost(orders, sum(map(processor_s, pids)) - cpu_s, time.perf_counter() - began_s)
    finally:
        await broker.stop()
        await database.stop()


async def _is_done(database: Database, orders: int) -> bool:
    """Whether so many came in and nothing waits; what a built-in that is left out would do does, until it is back."""
    async with database.reading() as session:
        came = (await session.execute(text("SELECT count(*) FROM events"))).scalar_one()
        waiting = await queue.count_by_status(session)
        return bool(came >= orders) and not any(handler.startswith("bench_plugin:") for handler, _ in waiting)
