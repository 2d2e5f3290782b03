"""Ledger: SQLite as it is, but in the simulation's thread and time. A statement takes a while before it is carried out,
and again before it is known what came of it: in between, whoever asked may die."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from consumer.ledger import sqlite_driver
from tests.simulation.loop import here

BUSY_S = 15.0
AGAIN_S = 0.01

Pause = Callable[[], Awaitable[None]]
Trouble = Callable[[float], bool]
"""Whether a statement fails here, of which so large a share of the failures is."""
Turn = tuple[asyncio.Future[Any] | None, Callable[[], Any]]


class Turns:
    """In the place of a connection's queue and thread: one after the other, by a task of the process that asks."""

    def __init__(self, pause: Pause, trouble: Trouble) -> None:
        self._pause = pause
        self._trouble = trouble
        self._waiting: deque[Turn] = deque()
        self._is_busy = False

    def put_nowait(self, turn: Turn) -> None:
        """As the queue's."""
        if asyncio._get_running_loop() is None:
            return  # it is collected when all is over
        self._waiting.append(turn)
        if not self._is_busy:
            self._is_busy = True
            asyncio.get_running_loop().create_task(self._work())

    def start(self) -> None:
        """As the thread's."""

    async def _work(self) -> None:
        while self._waiting:
            future, function = self._waiting.popleft()
            await self._pause()
            try:
                self._fail(0.5)
                found = await self._done(function)
                self._fail(0.5)
            except Exception as error:  # noqa: BLE001 - whatever it is, who asked is told
                await self._pause()
                if future is not None and not future.done():
                    future.set_exception(error)
            else:
                await self._pause()
                if future is not None and not future.done():
                    future.set_result(found)
        self._is_busy = False

    def _fail(self, share: float) -> None:
        if self._trouble(share):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR, "SQLITE_IOERR"
            raise error

    async def _done(self, function: Callable[[], Any]) -> Any:
        """Another process may be writing: that is waited for in the simulation's time."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + BUSY_S
        while True:
            try:
                return function()
            except sqlite3.OperationalError as error:
                is_busy = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
                if not is_busy or loop.time() >= until_s:
                    raise
            await asyncio.sleep(AGAIN_S)


def connecting(pause: Pause, trouble: Trouble, now: Callable[[], datetime]) -> Callable[..., sqlite_driver.Connection]:
    """In the place of `sqlite_driver.connection`, which this calls. `now`: SQLite's own time, which leases go by."""
    original = sqlite_driver.connection

    def connection(database: str, **given: Any) -> sqlite_driver.Connection:
        made: Any = original(database, **given | {"timeout": 0.0})
        opened = made._connector

        def opened_now() -> sqlite3.Connection:
            found: sqlite3.Connection = opened()
            found.create_function("strftime", 2, lambda *_: now().isoformat(timespec="milliseconds"))
            return found

        made._connector = opened_now
        made._tx = made._thread = Turns(pause, trouble)
        if (process := here()) is not None:
            process.on_death.append(lambda: _closed(made))
        return made  # type: ignore[no-any-return]  # its queue and thread are private

    return connection


def _closed(connection: Any) -> None:
    opened, connection._connection = connection._connection, None
    if opened is not None:
        opened.close()
