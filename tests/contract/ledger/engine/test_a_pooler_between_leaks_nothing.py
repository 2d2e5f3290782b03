"""PgBouncer between us and PostgreSQL: whether it pools sessions or transactions, and whatever it takes at a start, all
goes on as without it, and nothing of ours is left where others come next. That it pools statements is told."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text

from consumer.errors import PoolerRefuses
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.engine.applied import require_current
from consumer.ledger.engine.grants import require_grants
from consumer.ledger.handling import events
from tests.contract.ledger.facts import NOW, event
from tests.faults.server import DATABASE, PASSWORD, USER, PostgresServer, postgres
from tests.support.ports import eventually, free_port
from tests.support.tools import need_program

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

INI = """[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {folder}/users.txt
pool_mode = {mode}
default_pool_size = {size}
ignore_startup_parameters = {ignored}
"""
TAKES_ALL = (
    "idle_in_transaction_session_timeout, lock_timeout, statement_timeout, tcp_keepalives_idle, "
    "tcp_keepalives_interval, tcp_keepalives_count, tcp_user_timeout, plan_cache_mode, enable_seqscan, "
    "enable_bitmapscan, jit"
)
"""As its manual says to do with what it does not know: to swallow it."""
OURS = "SELECT current_setting('lock_timeout') || ' ' || current_setting('enable_seqscan')"


@pytest.fixture(scope="module")
def program() -> str:
    return need_program("pgbouncer", "pgbouncer")


@pytest.fixture
async def server() -> AsyncIterator[PostgresServer]:
    async with postgres() as found:
        yield found


@asynccontextmanager
async def pooler(
    program: str, server: PostgresServer, mode: str, *, ignored: str = "", size: int = 20
) -> AsyncIterator[str]:
    """A PgBouncer of our own; yields the URL through it."""
    port = free_port()

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    with tempfile.TemporaryDirectory(prefix="pooler") as folder:
        told = INI.format(server=server.proxy.port, port=port, folder=folder, mode=mode, ignored=ignored, size=size)
        running = _started(program, Path(folder), told)
        try:
            await eventually(listens, within_s=20, every_s=0.05, what="the pooler listens")
            yield f"postgresql+asyncpg://{USER}:{PASSWORD}@127.0.0.1:{port}/{DATABASE}?ssl=disable"
        finally:
            running.terminate()
            await asyncio.to_thread(running.wait, 20)


def _started(program: str, folder: Path, told: str) -> subprocess.Popen[bytes]:
    """It will not run as root."""
    (folder / "users.txt").write_text(f'"{USER}" "{PASSWORD}"\n')
    (folder / "pooler.ini").write_text(told)
    folder.chmod(0o755)
    nobody = "nobody" if os.geteuid() == 0 else None
    return subprocess.Popen(
        [program, "-q", str(folder / "pooler.ini")], user=nobody, group="nogroup" if nobody else None,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


async def left_behind(url: str) -> tuple[str, int]:
    """What who comes next finds: our settings, and how much is prepared."""
    connection = await asyncpg.connect(
        url.replace("+asyncpg", "").replace("?ssl=", "?sslmode="), statement_cache_size=0
    )
    try:
        async with connection.transaction():
            prepared = "SELECT count(*) FROM pg_prepared_statements WHERE name <> ''"
            return await connection.fetchval(OURS), await connection.fetchval(prepared)
    finally:
        await connection.close()


# case: O2
@pytest.mark.parametrize("mode", ["session", "transaction"])
@pytest.mark.parametrize("ignored", ["", TAKES_ALL], ids=["refuses", "swallows"])
async def test_all_goes_on_as_without_it(program: str, server: PostgresServer, mode: str, ignored: str) -> None:
    async with pooler(program, server, mode, ignored=ignored) as url:
        one, other = Database(url, pool_size=3), Database(url, pool_size=3)
        try:
            await asyncio.gather(schema.upgrade(one), schema.upgrade(other))
            await require_current(other)
            await require_grants(one, ())

            async def ask(database: Database, word: str, number: int) -> bool:
                async with database.transaction() as session:
                    answer = await session.scalar(text(f"SELECT '{word} ' || CAST(:n AS TEXT)"), {"n": str(number)})
                    await events.record(session, [event(number)], NOW)
                    return bool(answer == f"{word} {number}" and await session.scalar(text(OURS)) == "30s off")

            asked = [ask(*who, number) for number in range(20) for who in ((one, "one"), (other, "other"))]
            assert all(await asyncio.gather(*asked))
            async with one.reading() as session:
                assert await session.scalar(text("SELECT count(*) FROM events")) == 20
        finally:
            await one.stop()
            await other.stop()


async def test_nothing_is_left_for_who_comes_next(program: str, server: PostgresServer) -> None:
    async with pooler(program, server, "transaction", ignored=TAKES_ALL, size=1) as url:
        before = await left_behind(url)
        ours = Database(url, pool_size=3)
        try:
            await schema.upgrade(ours)
            for number in range(3):
                async with ours.transaction() as session:
                    await events.record(session, [event(number)], NOW)
            assert await ours.check()
            assert await left_behind(url) == before == ("0 on", 0)
        finally:
            await ours.stop()


# cause: 08P01
async def test_that_it_pools_statements_is_told(program: str, server: PostgresServer) -> None:
    async with pooler(program, server, "statement") as url:
        ours = Database(url)
        try:
            with pytest.raises(PoolerRefuses) as told:
                await ours.check()
            assert "statement pooling" in told.value.line()
        finally:
            await ours.stop()
