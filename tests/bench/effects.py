"""Effects: orders through an effect handler, with 100,000 events in the ledger against an empty one, on both databases.
The log is embedded, the handler does nothing: what is measured is the ledger."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import uvloop
from sqlalchemy import text

from consumer.broker import EmbeddedBroker
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import queue
from consumer.plugin import Context, Event, handles
from tests.bench.ratio import Ratio, one_core
from tests.support.ledger.history import Past, finished, take_statistics
from tests.support.ports import eventually
from tests.support.postgres import create_database
from tests.work.workshop import Workshop, make_topics, order_paid

ORDERS = 3_000
BEHIND = 100_000
ROUNDS = 3
BAR = 0.8
HANDLER = "bench:ship"


@handles("order.paid", name=HANDLER, concurrency=64)
async def ship(event: Event, ctx: Context) -> None:
    """Nothing."""


def measure(folder: Path, postgres: str) -> list[Ratio]:
    """Alternate between the two, each on a ledger of its own; this process keeps to one core."""
    one_core(0)
    found = []
    for name in ("SQLite", "PostgreSQL"):
        rounds = []
        for number in range(ROUNDS + 1):
            behind = uvloop.run(_worked_off(folder, _url(name, folder, postgres), BEHIND))
            empty = uvloop.run(_worked_off(folder, _url(name, folder, postgres), 0))
            if number:  # the first round warms up
                rounds.append((behind, empty))
        found.append(Ratio(f"effects: {name}, {BEHIND} events in the ledger", "an empty ledger", rounds, BAR))
    return found


def _url(name: str, folder: Path, postgres: str) -> str:
    return f"sqlite+aiosqlite:///{folder / uuid.uuid4().hex}.db" if name == "SQLite" else create_database(postgres)


async def _worked_off(folder: Path, url: str, behind: int) -> float:
    """Orders per second, from the first poll on until every effect's success is stored."""
    database, broker = Database(url), EmbeddedBroker(folder / f"{uuid.uuid4().hex}.log")
    await schema.upgrade(database)
    if behind:
        await finished(database, Past(first=1, last=behind, handler=HANDLER))
        await take_statistics(database)
    await broker.start()
    await make_topics(broker)
    shop = Workshop(database, broker, [ship])
    await shop.publish(*(order_paid(f"new_{number}", f"new-{number}") for number in range(ORDERS)))
    try:
        async with shop.working() as worker:
            await eventually(lambda: worker.polls, within_s=30)
            began = time.perf_counter()
            await eventually(lambda: _is_done(database, behind + ORDERS), within_s=300, every_s=0.1)
            return ORDERS / (time.perf_counter() - began)
    finally:
        await broker.stop()
        await database.stop()


async def _is_done(database: Database, last: int) -> bool:
    """Whether all has come in and nothing waits."""
    async with database.reading() as session:
        newest = (await session.execute(text("SELECT max(seq) FROM events"))).scalar_one()
        return bool(newest) and newest >= last and not await queue.count_by_status(session)
