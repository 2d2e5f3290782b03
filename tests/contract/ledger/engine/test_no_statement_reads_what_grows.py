"""No statement reads a whole table that grows with the business: not with statistics of an empty ledger, not with those
of one that has its first order, not with those of a quiet one (nothing is open), not with fresh ones.

Every function of the ledger and of the console, and both built-in plugins, are called on a ledger with a long past;
what was sent is explained.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest
from sqlalchemy import Table

from consumer.ledger import Database
from tests.support.ledger import tour
from tests.support.ledger.history import Past, fill, finished, keep_statistics, take_statistics, waiting
from tests.support.ledger.plans import SMALL, Statements, collecting, whole_reads
from tests.support.postgres import copy_database

FINISHED = 100_000
WAITING = 6_000
OTHERS = 20_000
POSTGRESQL = ("empty", "first-order", "quiet")
MODULES = ("consumer.ledger.tables", "handlers.fulfilment.tables", "handlers.access.tables")

REASONS: Mapping[str, str] = {
    tour.TESTS_OWN: "not of the product",
    "console.unfulfilled.unfulfilled": "the 10,000 that wait for longest, by the index of what waits",
    "console.unread.unread": "reads that wait, in the order in which they are due",
    "console.subjects.require_known_order": "names like a mistyped one, among those of the newest 2,000 events",
    "ledger.handling.dead.has_runs": "once a command, for a handler that nobody knows",
    "ledger.handling.events.search": "a list for an operator, from the newest on until it is long enough",
    "ledger.reading.quarantine.count_each": "what lies there of one application, up to COUNT_MAX",
    "ledger.reading.observations.unseen": "once a reconcile walk: all subscriptions of the application",
    "ledger.reading.observations.count_unseen": "in a dry run of reconcile: all subscriptions of the application",
}
"""What may read more than it seeks, and why."""


@pytest.fixture(params=["sqlite", *(pytest.param(one, marks=pytest.mark.postgres) for one in POSTGRESQL)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A ledger of this test's own: statistics outlive the rows that they were taken of. SQLite takes none."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("sqlite_template"), tmp_path / "ledger.db")
        return f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    return copy_database(request.getfixturevalue("postgres_base"), request.getfixturevalue("postgres_template"))


@pytest.fixture
def statistics(request: pytest.FixtureRequest) -> str:
    """Of what the database has taken its statistics."""
    return str(request.node.callspec.params["database_url"])


async def with_a_past(database: Database, statistics: str) -> None:
    made = SMALL | {"events", "runs"}
    tables = [table for module in MODULES for table in _tables_of(module) if table.name not in made]
    await keep_statistics(database)
    await take_statistics(database, when=statistics == "empty")
    await finished(database, Past(first=3, last=3, handler=tour.HANDLER))
    await fill(database, tables, 1)
    await take_statistics(database, when=statistics == "first-order")
    await finished(database, Past(first=4, last=FINISHED + 2, handler=tour.HANDLER))
    await fill(database, tables, OTHERS, first=1_000_001)
    await take_statistics(database, when=statistics == "quiet")
    backlog = Past(first=FINISHED + 3, last=FINISHED + WAITING + 2, handler=tour.HANDLER, per_order=3)
    await waiting(database, backlog)


def _tables_of(module: str) -> list[Table]:
    models = [one for one in vars(import_module(module)).values() if inspect.isclass(one) and hasattr(one, "__table__")]
    return [model.__table__ for model in models if model.__module__ == module]


async def explained(database: Database, statements: Statements) -> list[str]:
    found = []
    async with database.engine.connect() as connection:
        for statement, (label, parameters) in statements.found.items():
            for line in await whole_reads(connection, statement, parameters):
                if label not in REASONS:
                    found.append(f"{label}: {line}\n    {' '.join(statement.split())[:700]}")
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_statement_reads_what_grows(database: Database, statistics: str) -> None:
    await with_a_past(database, statistics)
    with collecting(database) as statements:
        await tour.walk(database, statements)
        await tour.built_in(database, statements)
    assert len(statements.found) > 150
    found = await explained(database, statements)
    assert not found, "\n".join(found)
    await take_statistics(database)
    found = await explained(database, statements)
    assert not found, "with fresh statistics:\n" + "\n".join(found)
