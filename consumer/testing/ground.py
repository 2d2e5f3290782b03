"""Ground: what a workbench stands on: an event loop in a thread of its own, a ledger in a file, the worker's executor.

Making one takes longer than most tests. So who plays many histories stands on one, and has it made new each time.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Coroutine
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Table
from sqlmodel import SQLModel

from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.work.execution.executor import Executor

LIMIT_S = 60.0
STUCK_S = 1.0
"""For what ends a ground of which something has not come back."""
TEMPLATES_MAX = 8

T = TypeVar("T")


class Ground:
    """`with Ground() as ground`; its ledger is empty, with the tables of every plugin that is imported."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="workbench-"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="workbench", daemon=True)
        self._thread.start()
        self._path = self._folder / "ledger.db"
        self._made: frozenset[Table] = frozenset()
        self._is_stuck = False
        self._write()
        self.database = Database(f"sqlite+aiosqlite:///{self._path}", durable=False)
        self.executor = Executor()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it on the loop, and return when it is done. Raises TimeoutError for what does not come back."""
        limit_s = STUCK_S if self._is_stuck else LIMIT_S
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result(limit_s)
        except TimeoutError:
            if done.done():
                raise
            self._is_stuck = True
            done.cancel()
            raise TimeoutError(f"it has not come back within {limit_s:g} s") from None

    def renew(self) -> None:
        """An empty ledger again."""
        self.wait(self.database.stop())
        self._write()

    def prepare(self) -> None:
        """The tables of plugins that were imported since; they need no migrations (yet)."""
        if frozenset(SQLModel.metadata.tables.values()) - self._made:
            self.wait(_create_tables(self.database))
            self._made = frozenset(SQLModel.metadata.tables.values())

    def close(self) -> None:
        """End everything and remove the ledger. Safe to call twice."""
        if self._loop.is_closed():
            return
        with suppress(TimeoutError):  # of what holds the loop it was told
            self.wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STUCK_S if self._is_stuck else 10)
        if not self._thread.is_alive():
            self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self) -> None:
        self._made = frozenset(SQLModel.metadata.tables.values())
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._path.write_bytes(_with_tables(self._made))

    async def _close(self) -> None:
        await self.executor.pool.close()
        await self.database.stop()


async def _create_tables(database: Database) -> None:
    async with database.engine.begin() as connection:
        await connection.run_sync(SQLModel.metadata.create_all)


@lru_cache(maxsize=TEMPLATES_MAX)
def _with_tables(tables: frozenset[Table]) -> bytes:  # noqa: ARG001 - what the file is kept for
    """The file of a ledger with these tables."""
    return _file_after(_create_tables, empty_ledger())


@cache
def empty_ledger() -> bytes:
    """The file of a ledger with its schema, made once: migrating takes far longer than copying."""
    return _file_after(schema.upgrade)


def _file_after(work: Any, begin: bytes = b"") -> bytes:
    """The file of a database after this was done to it, in a thread: the caller may be inside a loop."""

    async def do(path: Path) -> None:
        database = Database(f"sqlite+aiosqlite:///{path}")
        try:
            await work(database)
        finally:
            await database.stop()

    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        path = Path(folder) / "ledger.db"
        if begin:
            path.write_bytes(begin)
        maker = threading.Thread(target=lambda: asyncio.run(do(path)), name="workbench-schema")
        maker.start()
        maker.join(LIMIT_S)
        return path.read_bytes()
