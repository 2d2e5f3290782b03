"""A backlog, from outside: the processes and commands of an operator, on both databases.

6,000 orders come in while the handler that ships them is paused, and it is resumed. Once on an empty ledger; once with
those behind it, `VACUUM ANALYZE` while it is quiet and then the orders; once with the orders and then `VACUUM ANALYZE`,
while they wait. Orders per second from `handlers resume` to the last parcel.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from consumer.ledger import Database
from tests.bench.ratio import Ratio
from tests.support.ledger.history import take_statistics
from tests.support.load import SECRET, paid_orders, send
from tests.support.merchant.plugin import install_plugin
from tests.support.merchant.warehouse import Warehouse
from tests.support.ports import eventually
from tests.support.postgres import create_database
from tests.support.process import ConsumerProcess, command, ended

ORDERS = 6_000
BAR = 0.5
LIMIT_S = 900.0
HANDLER = "warehouse:ship"


def measure(folder: Path, postgres: str) -> list[Ratio]:
    """Each database with processes of its own. Raises RuntimeError when an order is shipped twice."""
    found = []
    for name in ("SQLite", "PostgreSQL"):
        place = folder / uuid.uuid4().hex
        place.mkdir()
        url = create_database(postgres) if name == "PostgreSQL" else f"sqlite+aiosqlite:///{place}/ledger.db"
        empty, quiet, waiting = asyncio.run(_drill(place, url))
        for when, rate in (("before", quiet), ("while", waiting)):
            what = f"backlog: {name}, vacuumed {when} {ORDERS} orders wait"
            found.append(Ratio(what, "the same on an empty ledger", [(rate, empty)], BAR))
    return found


async def _drill(folder: Path, database_url: str) -> tuple[float, float, float]:
    """Orders per second: on an empty ledger; vacuumed before the orders came; vacuumed while they wait."""
    async with Warehouse() as warehouse:
        environ = {
            "CONSUMER_BROKER_URL": f"embedded:{folder}/log.db",
            "CONSUMER_DATABASE_URL": database_url,
            "CONSUMER_AUTHENTICITY": "signature",
            "CONSUMER_WEBHOOK_SECRETS": SECRET,
            **install_plugin(folder, "warehouse_plugin", warehouse.plugin()),
        }
        _run(environ, "db", "upgrade")
        serve, work = ConsumerProcess("serve", environ, folder), ConsumerProcess("work", environ, folder)
        database = Database(database_url)
        try:
            with ended(serve, work):
                for process in (serve, work):
                    process.spawn()
                    await process.ready()
                shop = _Shop(environ, serve, database, warehouse)
                empty = await shop.worked_off(0)
                await take_statistics(database)
                quiet = await shop.worked_off(1)
                waiting = await shop.worked_off(2, vacuumed=True)
        finally:
            await database.stop()
        if twice := [order for order, parcels in warehouse.parcels.items() if parcels > 1]:
            raise RuntimeError(f"{len(twice)} orders were shipped more than once")
    return empty, quiet, waiting


@dataclass(frozen=True)
class _Shop:
    environ: Mapping[str, str]
    serve: ConsumerProcess
    database: Database
    warehouse: Warehouse

    async def worked_off(self, number: int, *, vacuumed: bool = False) -> float:
        """The orders of this number: how many of them a second; `vacuumed`: while they wait."""
        _run(self.environ, "handlers", "pause", HANDLER, "--reason", "drill")
        sendings = paid_orders(ORDERS, 0, first=number * ORDERS)
        await send(f"{self.serve.addresses['public_url']}/webhooks/default", sendings, limit_s=LIMIT_S)
        await eventually(lambda: self._waits(ORDERS), within_s=LIMIT_S, every_s=0.5, what="all orders wait")
        if len(self.warehouse.keys) != number * ORDERS:
            raise RuntimeError("a paused handler shipped")
        await take_statistics(self.database, when=vacuumed)
        _run(self.environ, "handlers", "resume", HANDLER, "--reason", "drill")
        clock = asyncio.get_running_loop().time
        began = clock()
        done = (number + 1) * ORDERS
        await eventually(lambda: len(self.warehouse.keys) == done, within_s=LIMIT_S, every_s=0.05)
        took_s = clock() - began
        await eventually(lambda: self._waits(0), within_s=60, every_s=0.5, what="every run is finished")
        sys.stderr.write(f"{self.database.dialect}: {ORDERS} orders more in {took_s:.1f} s\n")
        return ORDERS / took_s

    async def _waits(self, count: int) -> bool:
        statement = text("SELECT count(*) FROM runs WHERE handler = :handler AND status <> 'succeeded'")
        async with self.database.reading() as session:
            return bool((await session.execute(statement, {"handler": HANDLER})).scalar_one() == count)


def _run(environ: Mapping[str, str], *arguments: str) -> None:
    done: subprocess.CompletedProcess[str] = command(*arguments, environ=environ, within_s=120)
    if done.returncode != 0:
        raise RuntimeError(f"consumer {' '.join(arguments)}: {done.stderr.strip()[-500:]}")
