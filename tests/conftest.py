"""Fixtures that several test folders share: real servers, a ledger per test."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine
from sqlalchemy.util import LRUCache

from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.telemetry.logs import configure_logging
from tests import heavy
from tests.support.kafka import KafkaServer, kafka_server
from tests.support.ledger.shared import SharedLedger
from tests.support.postgres import copy_database, create_database, in_memory, postgres_server
from tests.support.process import tell_each_other

# How long an example takes is the machine's business, which may be busy with other tests.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


class _CompiledByDatabase(LRUCache[Any, Any]):
    """What SQLAlchemy compiles of a statement, kept for all engines of a test run: a process of ours has one engine and
    compiles each statement once, a test run has thousands. The key begins with the engine's dialect; here, its name."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__((key[0].name, *key[1:]), value)


_COMPILED = _CompiledByDatabase(5_000)
Engine._compiled_cache = property(lambda _: _COMPILED, lambda *_: None)  # type: ignore[assignment]  # no other way in


def pytest_configure() -> None:
    """What tests write is thrown away: it lies in memory, where there is plenty, unless somebody says where."""
    if folder := in_memory():
        os.environ.setdefault("TMPDIR", folder)
        tempfile.tempdir = None  # it may have looked already


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what is imported is garbage: looking for it takes a sixth of the collection, and is not repeated
    among what the tests leave."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `heavy.txt` names; the files that take longest come first."""
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in heavy.FIRST)
    for item in items:
        if heavy.function(item.nodeid) in heavy.names():
            item.add_marker(pytest.mark.heavy)


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember what failed."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Emptied where the test passed, as a thousand ledgers are no small thing; no later test is given it anew, for much
    is kept by its path."""
    yield tmp_path
    if not request.node.stash.get(_FAILED, False):
        shutil.rmtree(tmp_path, ignore_errors=True)
        tmp_path.mkdir(exist_ok=True)


@pytest.fixture(scope="session", autouse=True)
def started_once_in_a_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What starts from nothing the first time does so in one of the workers."""
    folder = tmp_path_factory.getbasetemp()
    tell_each_other(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


@pytest.fixture(autouse=True)
def log_lines_as_at_first() -> Iterator[None]:
    """Logging is the process's: whatever level a test leaves, the next one hears every line."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def stream() -> io.StringIO:
    """Where the log goes during the test."""
    found = io.StringIO()
    configure_logging("info", "json", found)
    return found


@pytest.fixture(scope="session")
def postgres_base() -> Iterator[str]:
    """The URI of a PostgreSQL server of this session's own."""
    with postgres_server(durable=False) as uri:
        yield uri


@pytest.fixture
def postgres_url(postgres_base: str) -> str:
    """A fresh PostgreSQL database, as `CONSUMER_DATABASE_URL` wants it."""
    return create_database(postgres_base)


async def _migrate(url: str) -> None:
    database = Database(url)
    try:
        await schema.upgrade(database)
    finally:
        await database.stop()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite ledger: copying it is much quicker than migrating anew for every test."""
    path = tmp_path_factory.mktemp("template") / "ledger.db"
    asyncio.run(_migrate(f"sqlite+aiosqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres_base: str) -> str:
    """The URL of a migrated PostgreSQL database that nobody is connected to."""
    url = create_database(postgres_base)
    asyncio.run(_migrate(url))
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh, migrated database of each kind: what holds on one must hold on the other."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("sqlite_template"), tmp_path / "ledger.db")
        return f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    return copy_database(request.getfixturevalue("postgres_base"), request.getfixturevalue("postgres_template"))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A ledger of each kind."""
    found = Database(database_url)
    yield found
    await found.stop()


@pytest.fixture
async def sqlite_ledger(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Database]:
    """A ledger on SQLite only."""
    shutil.copyfile(sqlite_template, tmp_path / "ledger.db")
    found = Database(f"sqlite+aiosqlite:///{tmp_path}/ledger.db")
    yield found
    await found.stop()


@pytest.fixture(scope="module")
def shared_ledger(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLedger]:
    """A ledger on SQLite for all histories of a module."""
    path = tmp_path_factory.mktemp("shared") / "ledger.db"
    shutil.copyfile(sqlite_template, path)
    with closing(SharedLedger(f"sqlite+aiosqlite:///{path}")) as made:
        yield made


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A running Apache Kafka of this session's own; skips, or fails when CI is set, where it cannot be had."""
    with kafka_server(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_url(kafka_broker: KafkaServer) -> str:
    """Its address, as `CONSUMER_BROKER_URL` wants it. Use topics and groups with names of your own."""
    return kafka_broker.url
