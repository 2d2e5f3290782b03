"""A migrated ledger of each kind per test, copied from one that was migrated once; `other` is a second process's."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from consumer.ledger import Database
from tests.support.postgres import copy_database


@pytest.fixture(scope="session")
def postgres_shared(postgres_base: str, postgres_template: str) -> str:
    """The URL of the one PostgreSQL database that these tests use one after the other: a fresh one for each of them
    is hundreds of thousands of files."""
    return copy_database(postgres_base, postgres_template)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated database of each kind with nothing in it: what holds on one must hold on the other."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "ledger.db")
        return f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    url = str(request.getfixturevalue("postgres_shared"))
    asyncio.run(_emptied(url))
    return url


async def _emptied(url: str) -> None:
    database = Database(url)
    try:
        async with database.transaction() as session:
            wanted = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
            tables = ", ".join(f'"{name}"' for name in await session.scalars(text(wanted)))
            await session.execute(text(f"TRUNCATE {tables} RESTART IDENTITY"))
    finally:
        await database.stop()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind without a table."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/empty.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Database]:
    """The same ledger as another process has it: with an engine and a writer's queue of its own."""
    found = Database(database_url)
    yield found
    await found.stop()


@pytest.fixture
async def empty(empty_url: str) -> AsyncIterator[Database]:
    """A database before `consumer db upgrade`."""
    found = Database(empty_url)
    yield found
    await found.stop()
