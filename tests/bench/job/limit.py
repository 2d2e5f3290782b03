"""The limit: the rows that a run left in its ledger, inserted again. No rule is asked, nothing is looked up: with each
batch polled from the log its share of all rows goes into an empty ledger, by the driver itself, in one commit."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import make_url

from consumer.broker.base import next_offsets
from tests.bench.job.prepared import prepared, webhooks
from tests.bench.ratio import Cost

BATCH = 200


@dataclass(frozen=True)
class Rows:
    """The rows of one table, as the driver gives them."""

    table: str
    rows: Sequence[Sequence[Any]]

    def between(self, first: int, last: int, of: int) -> Sequence[Sequence[Any]]:
        """Those that go with the messages from `first` on up to `last`."""
        count = len(self.rows)
        return self.rows[count * first // of : count * last // of]

    def statement(self, placeholder: Callable[[int], str]) -> str:
        """The INSERT of one."""
        return f"INSERT INTO {self.table} VALUES ({', '.join(map(placeholder, range(1, len(self.rows[0]) + 1)))})"


async def rows_of(url: str, orders: int) -> list[Rows]:
    """What a run has left, of the tables that grew with the orders."""
    if _is_sqlite(url):
        with closing(sqlite3.connect(_file(url))) as file:
            names = file.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL").fetchall()
            found = [Rows(name, file.execute(f"SELECT * FROM {name}").fetchall()) for (name,) in names]
    else:
        server = await asyncpg.connect(_dsn(url))
        names = await server.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        found = [Rows(name, [tuple(row) for row in await server.fetch(f"SELECT * FROM {name}")]) for (name,) in names]
        await server.close()
    return [one for one in found if len(one.rows) >= orders]


async def inserted(folder: Path, url: str, orders: int, rows: Sequence[Rows], *, kafka: str = "") -> Cost:
    """What it costs to insert them, into the empty ledger at `url`."""
    async with prepared(folder, url, webhooks(orders), kafka=kafka) as place, _insert(url, rows) as insert:
        subscription = place.broker.subscribe([place.topic], place.topic)
        await subscription.start()
        try:
            began_s, cpu_s, done = time.perf_counter(), time.process_time(), 0
            while done < orders:
                records = await subscription.poll(BATCH, 0.5)
                if records:
                    await insert(done, done + len(records), orders)
                    await subscription.commit(next_offsets(records))
                done += len(records)
            return Cost(orders, time.process_time() - cpu_s, time.perf_counter() - began_s)
        finally:
            await subscription.stop()


@asynccontextmanager
async def _insert(url: str, rows: Sequence[Rows]) -> AsyncIterator[Callable[[int, int, int], Awaitable[None]]]:
    if _is_sqlite(url):
        with closing(sqlite3.connect(_file(url), check_same_thread=False)) as file:
            statements = [one.statement(lambda _: "?") for one in rows]

            def into_file(first: int, last: int, of: int) -> None:
                with file:
                    for statement, one in zip(statements, rows, strict=True):
                        file.executemany(statement, one.between(first, last, of))

            async def on_thread(first: int, last: int, of: int) -> None:
                await asyncio.to_thread(into_file, first, last, of)

            yield on_thread
        return
    server = await asyncpg.connect(_dsn(url))
    statements = [one.statement(lambda number: f"${number}") for one in rows]

    async def into_server(first: int, last: int, of: int) -> None:
        async with server.transaction():
            for statement, one in zip(statements, rows, strict=True):
                await server.executemany(statement, one.between(first, last, of))

    try:
        yield into_server
    finally:
        await server.close()


def _is_sqlite(url: str) -> bool:
    return make_url(url).get_backend_name() == "sqlite"


def _file(url: str) -> str:
    return make_url(url).database or ""


def _dsn(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
