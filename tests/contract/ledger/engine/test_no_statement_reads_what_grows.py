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
from tests.support.ledger.history import Past, dead, fill, finished, keep_statistics, replayed, take_statistics, waiting
from tests.support.ledger.plans import SMALL, Statements, collecting
from tests.support.postgres import copy_database

FINISHED = 60_000
WAITING = 24_000
OTHERS = 10_000
PLANNED = 8_000
OPEN = 8_000
POSTGRESQL = ("empty", "first-order", "quiet", "fresh")
MODULES = (
    "consumer.ledger.tables",
    "consumer.ledger.plans.tables",
    "handlers.fulfilment.tables",
    "handlers.access.tables",
)

WHOLE: Mapping[str, str] = {
    tour.TESTS_OWN: "not of the product",
    "console.alarms.unfulfilled.unfulfilled": "the 10,000 that wait for longest, by the index of what waits",
    "console.alarms.unread.overdue": "reads that wait, in the order in which they are due",
    "console.alarms.unread.unread": "reads that wait, in the order in which they are due",
    "console.operators.subjects.require_known_order": "names like a mistyped one, among those of the newest 2,000",
    "ledger.archiving.bodies.take_first_walks": "once an import into an empty database: whether all events are there",
    "ledger.handling.dead.has_runs": "once a command, for a handler that nobody knows",
    "ledger.handling.events.search": "a list for an operator, from the newest on, SEARCHED_MAX at most",
    "ledger.handling.outbox.astray": "what is on its way by the log, asked while nothing in it is unread",
    "ledger.reading.quarantine.count_each": "what lies there of one application, up to COUNT_MAX",
    "ledger.reading.read_requests.count_due": "reads that wait, in the order in which they are due",
    "ledger.reading.read_requests.oldest_due": "reads that wait, in the order in which they are due",
    "ledger.reading.observations.unseen": "once a reconcile walk: all subscriptions of the application",
    "ledger.reading.observations.count_unseen": "in a dry run of reconcile: all subscriptions of the application",
    "ledger.plans.candidates.pairs": "the history that a new handler missed: each event once, in either order",
    "ledger.plans.candidates.left_alone": "of the newest events, until COUNTED_MAX fit",
    "ledger.plans.candidates.missed": "all events from before a handler was there: it has not had them",
}
"""Whose plan may read more than it seeks, and why."""

ANY: Mapping[str, str] = {
    "console.explain.explain": "as of its parts",
    "console.explain.explain_customer": "of two indexes of what waits to be sent it may take the longer one",
    "console.explain.explain_subscription": "of two indexes of what waits to be sent it may take the longer one",
}
"""Whose plan may do so when it is made for any parameters, which our connections never ask for."""

MANY: Mapping[str, str] = {
    tour.TESTS_OWN: "not of the product",
    "console.explain.explain": "dead runs that block nothing, among all that are dead",
    "console.explain.explain_customer": "dead runs that block nothing, among all that are dead",
    "console.explain.explain_subscription": "dead runs that block nothing, among all that are dead",
    "console.alarms.queues.findings": "what waits for a person, by age",
    "console.alarms.queues.queues": "what waits for a person, counted by kind",
    "console.alarms.unfulfilled.unfulfilled": "of what waits the 10,000 first requests, of each handler",
    "console.alarms.unread.unread": "a count, up to COUNT_MAX",
    "ledger.archiving.bodies.take_first_walks": "once an import into an empty database: whether all events are there",
    "ledger.audit.handled_after": "once a start while a rebuild is owed: to the first entry that is a handler's",
    "ledger.handling.dead.search": "what waits for a person, by arrival, whatever the handler",
    "ledger.handling.dead.totals": "a count, up to COUNT_MAX; what `dead list` shows fewer of than there are",
    "ledger.handling.events.about_how_many": "a count, up to COUNT_MAX",
    "ledger.handling.events.search": "SEARCHED_MAX at most",
    "ledger.handling.outbox.astray": "what is on its way by the log, asked while nothing in it is unread",
    "ledger.handling.outbox.waiting": "a count, up to COUNT_MAX",
    "ledger.handling.outcomes.delivered_only": "hints are kept up to a limit",
    "ledger.handling.outcomes.derived_open": "the certificate: all that is open",
    "ledger.handling.queue.count_by_status": "counts, up to COUNT_MAX each",
    "ledger.health.figures": "counts, up to COUNT_MAX each",
    "ledger.plans.candidates.pairs": "what a plan takes in, up to 100,000",
    "ledger.plans.candidates.left_alone": "counts, up to COUNTED_MAX each",
    "ledger.plans.candidates.missed": "all events from before a handler was there: it has not had them",
    "ledger.plans.candidates.archived": "all events that a new handler wants",
    "ledger.plans.candidates.seeded": "all events that a new handler wants",
    "ledger.plans.items.archived": "the items of one plan, once, when it begins",
    "ledger.plans.items.claim_followers": "the items of one plan",
    "ledger.plans.items.emitted": "what was derived under one plan",
    "ledger.plans.items.left": "the items of one plan that are left, counted in their index, once",
    "ledger.plans.items.moved": "the items of one plan",
    "ledger.plans.items.of_plan": "the items of one plan",
    "ledger.plans.items.progress": "the items of one plan, counted",
    "ledger.plans.items.run_counts": "the runs of one plan, counted",
    "ledger.plans.items.standings": "the items of one plan",
    "ledger.plans.items.underway": "what was derived under one plan",
    "ledger.plans.plans.cancel": "the items of one plan",
    "ledger.reading.hints.": "hints are kept up to a limit",
    "ledger.reading.samples.": "hints, and what strangers sent, are kept up to a limit",
    "ledger.reading.observations.unseen": "once a reconcile walk: all subscriptions of the application",
    "ledger.reading.observations.count_unseen": "in a dry run of reconcile: all subscriptions of the application",
    "ledger.reading.quarantine.": "what lies there is kept up to a limit",
    "ledger.reading.read_requests.count_due": "a count, up to COUNT_MAX",
}
"""What may read many rows of what waits (more than `plans.ROWS_MAX`), and why; a dot at the end: a whole module."""


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
    await replayed(database, Past(first=3, last=PLANNED + 2, handler=tour.HANDLER), tour.PLAN)
    await take_statistics(database, when=statistics == "quiet")
    await fill(
        database,
        [one for one in tables if one.name not in ("plans", "plan_items", "dead_letters")],
        OPEN,
        first=2_000_001,
        is_open=True,
    )
    last = FINISHED + WAITING + 2
    await dead(database, Past(first=last + 1, last=last + OPEN, handler=tour.HANDLER))
    backlog = Past(first=FINISHED + 3, last=FINISHED + WAITING + 2, handler=tour.HANDLER, per_order=3)
    await waiting(database, backlog)
    await take_statistics(database, when=statistics == "fresh")


def _tables_of(module: str) -> list[Table]:
    models = [one for one in vars(import_module(module)).values() if inspect.isclass(one) and hasattr(one, "__table__")]
    return [model.__table__ for model in models if model.__module__ == module]


async def toured(database: Database) -> Statements:
    """All that is sent, explained."""
    with collecting(database) as statements:
        await tour.walk(database, statements)
        await tour.built_in(database, statements)
    if database.dialect == "sqlite":
        async with database.engine.connect() as connection:
            await statements.explain(connection)
    return statements


def unexcused(found: Mapping[tuple[str, str], str], reasons: Mapping[str, str]) -> list[str]:
    return [
        f"{label}: {line}\n    {' '.join(statement.split())[:700]}"
        for (label, statement), line in found.items()
        if not any(label == one or (one.endswith(".") and label.startswith(one)) for one in reasons)
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_statement_reads_what_grows(database: Database, statistics: str) -> None:
    await with_a_past(database, statistics)
    statements = await toured(database)
    assert len(statements.texts) > 150
    found = unexcused(statements.whole, WHOLE) + unexcused(statements.many, MANY)
    found += unexcused(statements.any, {**WHOLE, **ANY})
    assert not found, "\n".join(found)
