"""Any interleaving of duplicated, reordered, torn batches, with failures anywhere, ends in the same tables."""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event as listening
from sqlalchemy import text

from consumer.broker import Partition, Record
from consumer.clock import DrivenClock
from consumer.errors import LedgerUnavailable
from consumer.events import Locators
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.plugin import Context, Event, Handler, declared, handles
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor
from consumer.work.execution.loop_pool import LoopPool
from consumer.work.ingest.ingest import Ingest
from consumer.work.registry import Registry
from tests.work.workshop import message, service_event

KEYS = 3
PER_KEY = 4
EVENTS = KEYS * PER_KEY
Tables = dict[str, list[tuple[Any, ...]]]
PARTITION = Partition("payments.events", 0)
GARBAGE = (b"default/order:1", b"{}")
BROKEN = "evt_1_2"


# --- the handlers: what they do depends on the event alone -------------------------------------------------------


@handles("order.*", transactional=True, name="shop:project")
async def project(event: Event, ctx: Context) -> None:
    """Emits, asks for a read and leaves a note; for one event it fails for good, after it has done all that."""
    ctx.emit("shop.requested", event.key, {"order": event.order_id}, once="order")
    ctx.emit("order.told", event.key, {"event": event.id})
    ctx.request_read("order", event.order_id or "")
    ctx.note(event.key, "order.seen", {}, {"event": event.id})
    await ctx.session.execute(text("INSERT INTO budgets (name, value) VALUES (:name, '')"), {"name": event.id})
    if event.id == BROKEN:
        raise ValueError("for good")


@handles("order.*", name="shop:ship")
async def ship(event: Event, ctx: Context) -> None:
    """An effect: ingest leaves it to the dispatcher."""


def handlers() -> list[Handler]:
    found = [declared(function) for function in (project, ship)]
    only_once = [replace(one, plugin="test", retry=replace(one.retry, attempts=1)) for one in found if one is not None]
    return [replace(one, on_dead="continue") for one in only_once]


# --- the world ---------------------------------------------------------------------------------------------------


@dataclass
class Saboteur:
    """Cuts the connection at the statements (or commits) whose numbers are in `at`: until the transaction is over
    nothing goes through any more, not even the way back to a savepoint."""

    at: frozenset[int]
    seen: int = field(default=0)
    struck: int = field(default=0)
    is_cut: bool = field(default=False)

    def passes(self, *_: Any) -> None:
        """Called before every statement and commit."""
        self.seen += 1
        if self.seen in self.at and not self.is_cut:
            self.struck += 1
            self.is_cut = True
        if self.is_cut:
            raise LedgerUnavailable("the connection is cut")

    def ends(self, *_: Any) -> None:
        """Called when the transaction is rolled back: the next one has a new connection."""
        self.is_cut = False

    @contextmanager
    def on(self, database: Database) -> Iterator[None]:
        """While the block lasts."""
        engine = database.engine.sync_engine
        ears = [("before_cursor_execute", self.passes), ("commit", self.passes), ("rollback", self.ends)]
        for name, ear in ears:
            listening.listen(engine, name, ear)
        try:
            yield
        finally:
            for name, ear in ears:
                listening.remove(engine, name, ear)


def records() -> list[Record]:
    """The log: events of three orders in turns, one thing that is not understood."""
    log = [
        message(service_event(f"evt_{key}_{number}", "order.paid", f"order-{key}"))
        for number in range(PER_KEY)
        for key in range(KEYS)
    ]
    given_ = [(one.key, one.value, one.headers) for one in log] + [(*GARBAGE, {})]
    return [
        Record(
            partition=PARTITION,
            offset=offset,
            key=key,
            value=value,
            headers=headers,
            published_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        for offset, (key, value, headers) in enumerate(given_)
    ]


async def play(database: Database, batches: Sequence[Sequence[int]], saboteur: Saboteur) -> None:
    """Each batch is taken until the ledger has it, as the worker does; then everything once, as after a restart."""
    log = records()
    ingest = Ingest(
        database=database,
        registry=Registry(handlers()),
        locators={"default": Locators()},
        contexts=Contexts(DrivenClock()),
        executor=Executor(LoopPool(on_harm=lambda *_: None)),
        clock=DrivenClock(),
        worker="one",
    )
    ingest._slow_handlers.limit_s = 600.0  # a busy machine is none of the failures that are played here
    with saboteur.on(database):
        for batch in [*batches, range(len(log))]:
            await take(ingest, [log[number] for number in batch])


async def take(ingest: Ingest, batch: Sequence[Record]) -> None:
    """The same event stands at many places of a real log; here it stands at one, so a batch need not follow another."""
    for _ in range(50):
        try:
            await ingest.take(batch, loose=frozenset({PARTITION}))
        except LedgerUnavailable:
            continue
        return
    raise AssertionError("it never got through")


async def tables(database: Database) -> Tables:
    """All that does not depend on the order of arrival, which the interleaving is free to choose."""
    wanted = {
        "events": "SELECT application, id, type, key, raw FROM events ORDER BY id",
        "runs": "SELECT event_id, handler, key, attempts, code FROM runs WHERE handler = 'shop:project' ORDER BY 1",
        "statuses": "SELECT event_id, status FROM runs WHERE handler = 'shop:project' ORDER BY 1",
        "effects": "SELECT event_id, handler, key FROM runs WHERE handler = 'shop:ship' ORDER BY 1",
        "attempts": "SELECT event_id, handler, number, outcome, code FROM attempts ORDER BY 1",
        "outbox": "SELECT event_id, type, key FROM outbox ORDER BY 1",
        "reads": "SELECT kind, object_id FROM reads ORDER BY 2",
        "audit": "SELECT subject, action, reason FROM audit ORDER BY 3",
        "writes": "SELECT name FROM budgets ORDER BY 1",
        "quarantine": "SELECT delivery_id, reason, raw FROM quarantine ORDER BY 1",
    }
    async with database.reading() as session:
        return {name: [tuple(row) for row in await session.execute(text(query))] for name, query in wanted.items()}


async def lanes(database: Database) -> dict[str, list[tuple[str, int]]]:
    """Of each order, the states of the effect's runs in the order of arrival."""
    query = "SELECT key, status, blocking FROM runs WHERE handler = 'shop:ship' ORDER BY seq"
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    async with database.reading() as session:
        for key, status, blocking in await session.execute(text(query)):
            found[key].append((status, int(blocking)))
    return found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated ledger."""
    path = tmp_path_factory.mktemp("template") / "ledger.db"

    async def migrate() -> None:
        database = Database(f"sqlite+aiosqlite:///{path}")
        await schema.upgrade(database)
        await database.stop()

    asyncio.run(migrate())
    return path


@pytest.fixture(scope="module")
def undisturbed(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """What everything ends in when it comes once, in order, and nothing fails."""
    return asyncio.run(outcome(template, tmp_path_factory.mktemp("ledger"), [], frozenset()))


EXPECTED_LANE = [("retrying", 1), *[("parked", 1)] * (PER_KEY - 1)]

interleavings = st.lists(st.lists(st.integers(0, EVENTS), min_size=1, max_size=8), max_size=6)
failures = st.frozensets(st.integers(1, 60), max_size=8)


# case: G1, G2, G5
@pytest.mark.slow
@given(batches=interleavings, at=failures)
@settings(max_examples=60, deadline=None)
def test_any_interleaving_with_any_failures(
    template: Path,
    undisturbed: Tables,
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[int]],
    at: frozenset[int],
) -> None:
    assert asyncio.run(outcome(template, tmp_path_factory.mktemp("ledger"), batches, at)) == undisturbed


async def outcome(template: Path, folder: Path, batches: Sequence[Sequence[int]], at: frozenset[int]) -> Tables:
    path = folder / "ledger.db"
    shutil.copy(template, path)
    database = Database(f"sqlite+aiosqlite:///{path}")
    try:
        await play(database, batches, Saboteur(at))
        assert all(lane == EXPECTED_LANE for lane in (await lanes(database)).values())
        return await tables(database)
    finally:
        await database.stop()
        shutil.rmtree(folder)


# case: G2
async def test_the_tables_are_what_the_handlers_say(sqlite_ledger: Database) -> None:
    """So that the property compares something: each event once, the failing one without its writes."""
    saboteur = Saboteur(frozenset({3, 9, 20}))
    await play(sqlite_ledger, [[0, 0, 1], [2, 1]], saboteur)
    assert saboteur.struck == 3
    found = await tables(sqlite_ledger)
    every = sorted(f"evt_{key}_{number}" for key in range(KEYS) for number in range(PER_KEY))
    assert [one[1] for one in found["events"]] == every
    assert [one[0] for one in found["writes"]] == [one for one in every if one != BROKEN]
    assert dict(found["statuses"]) == {one: "dead" if one == BROKEN else "succeeded" for one in every}
    assert len(found["outbox"]) == KEYS + EVENTS - 1
    assert [one[:2] for one in found["attempts"]] == [(BROKEN, "shop:project")]
    assert [one[1] for one in found["quarantine"]] == ["not_understood"]
