"""On SQLite there is one writer: a plan that tries a thousand runs lets the workers write in between."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import handlers
from consumer.ledger.plans.candidates import PlanFilter
from consumer.plugin import Context, Event, handles
from consumer.replay.prediction import SMALL_BATCH
from tests.replay.stage import Shop
from tests.support.ledger.history import Past, dead

BATCHES = 8


@handles("order.paid", transactional=True, name="shop:tally")
async def tally(event: Event, ctx: Context) -> None:
    await asyncio.sleep(0.006)  # its statements take a while


class Writer:
    """Another process's, as it were: it waits for the only writer's place, and gives it back at once."""

    def __init__(self, path: Path) -> None:
        self.written = 0
        self._path = path
        self._over = threading.Event()

    def run(self) -> None:
        """Until it is over."""
        connection = sqlite3.connect(self._path, timeout=60, isolation_level=None)
        while not self._over.is_set():
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            self.written += 1
            time.sleep(0.002)  # the next event comes
        connection.close()

    def end(self) -> None:
        """Write no more."""
        self._over.set()


# case: R2, R8
async def test_it_writes_between_the_batches(tmp_path: Path, broker: Broker) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
    try:
        await schema.upgrade(database)
        await dead(database, Past(first=1, last=BATCHES * SMALL_BATCH, handler="shop:tally"))
        replaying = Shop(database, broker, more=[tally]).replaying()
        registered = [one for one in map(replaying.planner.predictor.handlers.get, ["shop:tally"]) if one is not None]
        async with database.transaction() as session:
            await handlers.register(session, registered, datetime.now(UTC))
        writer, seen = Writer(tmp_path / "ledger.db"), [0]
        writing = asyncio.create_task(asyncio.to_thread(writer.run))
        try:
            wanted = PlanFilter(handler="shop:tally", status="dead")
            plan = await replaying.planner.make(wanted, by="ann", told=lambda *_: seen.append(writer.written))
        finally:
            writer.end()
            await writing
    finally:
        await database.stop()
    assert plan["runs"] == BATCHES * SMALL_BATCH
    gaps = [after > before for before, after in pairwise(seen[1:])]
    assert len(gaps) == BATCHES - 1
    assert sum(gaps) > len(gaps) / 2, "it did not starve"
