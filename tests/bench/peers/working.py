"""Working, against peers: an order's webhook is kept once and has an effect that does nothing, on the same Kafka and
PostgreSQL. Each side is one process on one core, and what counts is its CPU time. The insert of the rows that our
transactional handler leaves is the limit; of it events a second count, because nearly all of its work is the server's.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import uvloop

from consumer.broker import open_broker
from tests.bench.job import limit, naive
from tests.bench.job.bare_handlers import call, job_of, note
from tests.bench.job.prepared import webhooks, worked_off
from tests.bench.peers import programs
from tests.bench.ratio import Cost, Measured, Ratio, one_core
from tests.support.postgres import create_database
from tests.work.workshop import make_topics, message

OURS, PEERS, ROUNDS = 24_000, 2_000, 3
BAR, NAIVE_BAR, LIMIT_BAR = 1.0, 3.5, 0.65
EFFECT, NOTE, LIMIT = "ours, an effect", "ours, transactional", "insert of the same rows"
NAIVE = "a commit per message"
Side = Callable[[str], Cost]


def measure(folder: Path, postgres: str, kafka: str) -> list[Measured]:
    """All in turn, each on a database of its own; the first round warms up."""
    one_core(0)
    sides = _sides(folder, kafka)
    rounds = [{who: side(create_database(postgres)) for who, side in sides.items()} for _ in range(ROUNDS + 1)][1:]
    found: list[Measured] = []
    for who in sides:
        costs = [one[who] for one in rounds]
        cpu, rate = median(one.cpu_ms_per_1000 for one in costs), median(one.rate for one in costs)
        sys.stdout.write(f"{who:<36} {cpu:>7.0f} ms of CPU per 1,000 {rate:>8.0f}/s\n")
        if who == LIMIT:
            each = [(one[NOTE].rate, one[who].rate) for one in rounds]
            found.append(Ratio(f"{NOTE}: Kafka and PostgreSQL, events a second", who, each, LIMIT_BAR))
        elif who not in (EFFECT, NOTE):
            each = [(one[EFFECT].per_cpu_second, one[who].per_cpu_second) for one in rounds]
            found.append(Ratio(f"{EFFECT}: Kafka and PostgreSQL", who, each, NAIVE_BAR if who == NAIVE else BAR))
    sys.stdout.flush()
    return found


def _sides(folder: Path, kafka: str) -> Mapping[str, Side]:
    """Each works off its webhooks in the empty database at this address."""
    rows: list[limit.Rows] = []

    def noted(url: str) -> Cost:
        cost = uvloop.run(worked_off(folder, url, job_of(note, OURS), kafka=kafka))
        rows[:] = uvloop.run(limit.rows_of(url, OURS))
        return cost

    ours: dict[str, Side] = {
        EFFECT: lambda url: uvloop.run(worked_off(folder, url, job_of(call, OURS), kafka=kafka)),
        NOTE: noted,
        LIMIT: lambda url: uvloop.run(limit.inserted(folder, url, OURS, rows, kafka=kafka)),
        NAIVE: lambda url: uvloop.run(naive.effect(folder, url, PEERS, kafka=kafka)),
    }
    if not programs.python():
        return ours
    server = kafka.removeprefix("kafka://")

    def reading(module: str) -> Side:
        return lambda url: _said(module, server, uvloop.run(_published(kafka)), url)

    return {
        **ours,
        "FastStream and SQLAlchemy": reading("work.faststream_sqlalchemy"),
        "Django, get_or_create": reading("work.django_orm"),
        "procrastinate": lambda url: _said("work.procrastinate_queue", url.replace("+asyncpg", "")),
    }


def _said(module: str, *arguments: str) -> Cost:
    took = json.loads(programs.said(module, *arguments, str(PEERS)))
    return Cost(PEERS, took["cpu_s"], took["wall_s"])


async def _published(kafka: str) -> str:
    """A new topic with the webhooks."""
    broker, topic = open_broker(kafka), f"peers-{uuid.uuid4().hex[:8]}"
    await broker.start()
    try:
        await make_topics(broker, topic)
        await broker.publish_many(topic, [message(event) for event in webhooks(PEERS)])
    finally:
        await broker.stop()
    return topic
