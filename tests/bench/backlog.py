"""A backlog, from outside: the processes and commands of an operator, on both databases.

6,000 orders come in while the handler that ships them is paused, and it is resumed: once on an empty ledger, once on
one that has those behind it and has been vacuumed since. Orders per second from `handlers resume` to the last parcel.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import text

from consumer.ledger import Database
from tests.bench.ratio import Ratio
from tests.support.ledger.history import take_statistics
from tests.support.load import SECRET, Sending, paid_orders, send
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
        rounds = [asyncio.run(_drill(place, url))]
        found.append(Ratio(f"backlog: {name}, {ORDERS} orders paused", "the same on an empty ledger", rounds, BAR))
    return found


async def _drill(folder: Path, database_url: str) -> tuple[float, float]:
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
                first, second = paid_orders(ORDERS, 0), paid_orders(ORDERS, 0, first=ORDERS)
                empty = await _worked_off(environ, serve, database, warehouse, first)
                sys.stderr.write(f"{database.dialect}: {ORDERS / empty:.1f} s on an empty ledger\n")
                await take_statistics(database)
                behind = await _worked_off(environ, serve, database, warehouse, second)
                sys.stderr.write(f"{database.dialect}: {ORDERS / behind:.1f} s with a past\n")
        finally:
            await database.stop()
        if twice := [order for order, parcels in warehouse.parcels.items() if parcels > 1]:
            raise RuntimeError(f"{len(twice)} orders were shipped more than once")
    return behind, empty


async def _worked_off(
    environ: Mapping[str, str],
    serve: ConsumerProcess,
    database: Database,
    warehouse: Warehouse,
    sendings: Sequence[Sending],
) -> float:
    shipped = len(warehouse.keys)
    _run(environ, "handlers", "pause", HANDLER, "--reason", "drill")
    await send(f"{serve.addresses['public_url']}/webhooks/default", sendings, limit_s=LIMIT_S)
    await eventually(lambda: _waits(database, len(sendings)), within_s=LIMIT_S, every_s=0.5, what="all orders wait")
    if len(warehouse.keys) != shipped:
        raise RuntimeError("a paused handler shipped")
    _run(environ, "handlers", "resume", HANDLER, "--reason", "drill")
    clock = asyncio.get_running_loop().time
    began = clock()
    await eventually(lambda: len(warehouse.keys) == shipped + len(sendings), within_s=LIMIT_S, every_s=0.05)
    took = clock() - began
    await eventually(lambda: _waits(database, 0), within_s=60, every_s=0.5, what="every run is finished")
    return len(sendings) / took


async def _waits(database: Database, count: int) -> bool:
    statement = text("SELECT count(*) FROM runs WHERE handler = :handler AND status <> 'succeeded'")
    async with database.reading() as session:
        return bool((await session.execute(statement, {"handler": HANDLER})).scalar_one() == count)


def _run(environ: Mapping[str, str], *arguments: str) -> None:
    done: subprocess.CompletedProcess[str] = command(*arguments, environ=environ, within_s=120)
    if done.returncode != 0:
        raise RuntimeError(f"consumer {' '.join(arguments)}: {done.stderr.strip()[-500:]}")
