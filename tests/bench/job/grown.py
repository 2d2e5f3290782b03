"""A ledger that has grown: what an order costs with a million events and 100,000 open runs in it, against an empty one,
for an effect that does nothing and for the main job. CPU of the worker's process, and on PostgreSQL of the server, too.

The open runs are of the same handlers, half of them behind another of their order; their time comes in 2100.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median

import uvloop
from sqlalchemy import Table

from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.tables import OutboxRow
from handlers.fulfilment.tables import ORDERS
from tests.bench import main_job
from tests.bench.job.bare_handlers import call, job_of
from tests.bench.job.prepared import DATABASES, FAR, Job, url_of, worked_off
from tests.bench.ratio import Cost, Measured, Ratio, one_core, with_children_s
from tests.support.ledger.history import Past, fill, finished, take_statistics, waiting
from tests.support.postgres import postmaster

EVENTS = int(os.environ.get("BENCH_EVENTS", "1000000"))
OPEN = EVENTS // 10
ORDERS_EACH, ROUNDS = 3_000, 3
AT_MOST = 1.2
PAST = 10_000_000
"""The number of the first event of the past; those that are worked off have smaller ones."""
CALL = "bench:call"
_OUTBOX: Table = OutboxRow.__table__


def measure(folder: Path, postgres: str) -> list[Measured]:
    """Alternate between the two; the grown one is made once, and grows by what is worked off. The first round warms
    up."""
    one_core(0)
    server = postmaster(postgres)
    found: list[Measured] = []
    for name in DATABASES:
        grown = url_of(name, folder, postgres)
        uvloop.run(_grow(grown))
        numbers = count(step=ORDERS_EACH)
        for what, job in (("an effect", job_of(call, ORDERS_EACH)), ("main job", main_job.job_of(ORDERS_EACH))):
            rounds = []
            for _ in range(ROUNDS + 1):
                there = replace(job, first=next(numbers))
                urls = (grown, url_of(name, folder, postgres))
                rounds.append([_cost(folder, url, there, server if name == "PostgreSQL" else 0) for url in urls])
            _tell(f"{name}, {what}", rounds[1:])
            each = [(one.per_cpu_second, empty.per_cpu_second) for one, empty in rounds[1:]]
            shown = f"{what}: {name}, {EVENTS} events and {OPEN} open runs in the ledger"
            found.append(Ratio(shown, "an empty ledger, orders for a second of CPU", each, 1 / AT_MOST))
    return found


def _cost(folder: Path, url: str, job: Job, server: int) -> Cost:
    """The server's time included, from before the run on until after it."""
    before_s = with_children_s(server) if server else 0.0
    cost = uvloop.run(worked_off(folder, url, job))
    return replace(cost, server_s=(with_children_s(server) - before_s) if server else 0.0)


def _tell(what: str, rounds: Sequence[Sequence[Cost]]) -> None:
    for place, costs in zip(("grown", "empty"), zip(*rounds, strict=True), strict=True):
        ours = median(one.cpu_s / one.orders for one in costs) * 1e6
        together = median(one.cpu_ms_per_1000 for one in costs)
        sys.stdout.write(f"{what}, {place}: {ours:.0f} ms of CPU per 1,000, with the server {together:.0f}\n")
    sys.stdout.flush()


async def _grow(url: str) -> None:
    database = Database(url)
    await schema.upgrade(database)
    half, last = PAST + EVENTS // 2, PAST + EVENTS
    await finished(database, Past(first=PAST, last=half - 1, handler=CALL))
    await finished(database, Past(first=half, last=last - 1, handler=main_job.SHIP))
    for number, handler in enumerate((CALL, main_job.SHIP)):
        first = last + number * OPEN // 2
        await waiting(database, Past(first=first, last=first + OPEN // 2 - 1, handler=handler, per_order=2), due=FAR)
    await fill(database, [ORDERS, _OUTBOX], EVENTS // 2, first=PAST)
    await take_statistics(database)
    await database.stop()
