"""`kill -9` inside `consumer db upgrade` of a ledger full of an older version's rows: nothing of it is there, no row is
lost, and the next one finishes at once, also where the server was in the middle of a statement."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from consumer.ledger import Database
from consumer.ledger.engine import schema
from tests.contract.ledger.engine.test_migrations_keep_what_is_there import bring_to, stored, with_rows
from tests.crash.points import Point
from tests.support.merchant.plugin import install_migrations
from tests.support.ports import eventually
from tests.support.process import INHERITED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

BEFORE = "ledger_0011"
_REVISIONS = "consumer.ledger.engine.revisions"
POINTS = [
    Point("begun, nothing changed", f"{_REVISIONS}:starts", "before"),
    Point("in the middle of the migrations", f"{_REVISIONS}:remember", "before", 6),
    Point("between two branches", f"{_REVISIONS}:remember", "after", 12),
    Point("all done, not committed", f"{_REVISIONS}:note_all", "after"),
    Point("committed", "consumer.ledger.engine.schema:state", "before"),
]
UPGRADE = """
import asyncio, sys
from consumer.ledger import Database
from consumer.ledger.engine import schema
from tests.crash.points import Point, arm
arm(Point(*sys.argv[2:5], int(sys.argv[5])))
asyncio.run(schema.upgrade(Database(sys.argv[1])))
"""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    is_file = request.param == "sqlite"
    return f"sqlite+aiosqlite:///{tmp_path}/ledger.db" if is_file else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def older(url: str) -> AsyncIterator[Database]:
    """A ledger of an older version, full of its rows."""
    found = Database(url)
    await bring_to(found, BEFORE)
    await with_rows(found, has_plans=True)
    yield found
    await found.stop()


# case: O8
@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_at_one_point(older: Database, url: str, point: Point) -> None:
    rows = await stored(older)
    await older.engine.dispose()
    given = (url, point.name, point.target, point.when, str(point.call))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", UPGRADE, *given, env=environ())
    assert await process.wait() == -signal.SIGKILL
    assert (await _revision(older) == BEFORE) is (point.name != "committed")
    await _require_finished(older, rows)


# case: O8
@pytest.mark.postgres
@pytest.mark.parametrize("url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
async def test_while_the_server_is_in_a_long_statement(older: Database, url: str, tmp_path: Path) -> None:
    """It made an index to its end, for nobody, and held the tables: the next upgrade ended with `ledger_locked`."""
    rows = await stored(older)
    plugin = install_migrations(tmp_path, "long_plugin", 'op.execute("SELECT pg_sleep(600)")')
    found = environ() | {"CONSUMER_DATABASE_URL": url}
    found["PYTHONPATH"] = f"{plugin}:{found.get('PYTHONPATH', '')}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "consumer", "db", "upgrade", env=found, stderr=asyncio.subprocess.DEVNULL
    )

    async def is_in_it() -> bool:
        async with older.reading() as session:
            asked = text("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'")
            return bool(await session.scalar(asked))

    await eventually(is_in_it, within_s=60, every_s=0.2, what="the server is in the statement")
    process.kill()
    await process.wait()
    await _require_finished(older, rows)


def environ() -> dict[str, str]:
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


async def _require_finished(ledger: Database, rows: dict[str, list[dict[str, object]]]) -> None:
    assert (await schema.upgrade(ledger)).is_current
    await ledger.engine.dispose()
    assert {table: found for table, found in (await stored(ledger)).items() if table in rows} == rows


async def _revision(ledger: Database) -> str:
    async with ledger.reading() as session:
        versions = await session.scalars(text("SELECT version_num FROM alembic_version"))
        return str(max(one for one in versions if one.startswith("ledger_")))
