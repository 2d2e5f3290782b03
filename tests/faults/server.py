"""Server: PostgreSQL with a login of ours behind a proxy; its administrator comes in by the socket."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg

from tests.support.postgres import StoppableServer, stoppable_server
from tests.support.proxy import TcpProxy

USER = "consumer"
PASSWORD = "another-secret-word"
DATABASE = "payments"
LOCK = "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE"
HBA = "local all postgres trust\nlocal all all scram-sha-256\n"


class PostgresServer:
    """`proxy`: the way to it, which may be slow, cut or closed."""

    def __init__(self, server: StoppableServer, proxy: TcpProxy) -> None:
        self._server = server
        self.proxy = proxy
        self._holder: asyncpg.Connection | None = None

    @property
    def url(self) -> str:
        """As CONSUMER_DATABASE_URL wants it."""
        return f"postgresql+asyncpg://{USER}:{PASSWORD}@127.0.0.1:{self.proxy.port}/{DATABASE}?ssl=disable"

    @property
    def disk(self) -> Path:
        """The folder that a disk of its own may be mounted at."""
        return self._server.data.parent.parent

    async def say(self, *statements: str, database: str = "postgres") -> None:
        """As the administrator."""
        connection = await asyncpg.connect(self._server.uri, database=database)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def cut(self) -> None:
        """End every connection of our user: the next one is made anew."""
        await self.say(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'")

    async def hold(self, table: str, *, gently: bool = False) -> None:
        """Somebody's shell keeps a lock on this table; one that harms nobody, `gently`."""
        self._holder = await asyncpg.connect(self._server.uri, database=DATABASE)
        await self._holder.execute("BEGIN")
        await self._holder.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE" if gently else LOCK.format(table))

    async def let_go(self) -> None:
        """The shell is closed."""
        assert self._holder is not None
        await self._holder.close()

    async def stop(self, mode: str = "immediate") -> None:
        """`immediate`: as if it had crashed."""
        await asyncio.to_thread(self._server.stop, mode)

    async def begin_to_stop(self) -> None:
        """It waits until everybody has gone, and lets nobody in."""
        os.kill(self._server.pid, signal.SIGTERM)

    async def start(self) -> None:
        """On the same data."""
        await asyncio.to_thread(self._server.start)

    async def pause(self) -> None:
        """SIGSTOP to every process of it."""
        for pid in self._processes():
            os.kill(pid, signal.SIGSTOP)

    async def resume(self) -> None:
        """SIGCONT."""
        for pid in self._processes():
            os.kill(pid, signal.SIGCONT)

    def _processes(self) -> list[int]:
        first = self._server.pid
        return [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]


@asynccontextmanager
async def postgres(folder: Path | None = None) -> AsyncIterator[PostgresServer]:
    """A server that runs, with a user and an empty database of ours."""
    with stoppable_server(folder) as server:
        socket = Path(parse_qs(urlsplit(server.uri).query)["host"][0]) / ".s.PGSQL.5432"
        (server.data / "pg_hba.conf").write_text(HBA)
        async with TcpProxy(socket) as proxy:
            found = PostgresServer(server, proxy)
            await found.say(
                "SELECT pg_reload_conf()",
                f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'",
                f"CREATE DATABASE {DATABASE} OWNER {USER}",
            )
            yield found
