"""Migrations keep what is there: events, runs and plans that an older version stored are the same afterwards, in the
same order, and what waited is worked on in its turn."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from alembic import command
from sqlalchemy import RowMapping, bindparam, inspect, text
from sqlalchemy.engine import Connection
from structlog.testing import capture_logs

from consumer.columns import UtcDateTime
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.handling import queue, runs
from consumer.ledger.plans import items
from consumer.ledger.tables import EventRow
from tests.support.ledger.history import AT, Past, dead, finished, replayed, waiting
from tests.support.ports import eventually

HANDLER = "shop:ship"
PLAN = "rpl_old"
EMIT = """
INSERT INTO outbox (application, event_id, type, key, data, not_before, created_at, published_at, cause, handler)
VALUES ('default', :name, 'shop.seen', 'order:a', :data, :at, :at, :sent, 'evt_1', 'x')
"""
ORDERED = {
    "events": "seq",
    "runs": "seq, handler",
    "dead_letters": "id",
    "plan_items": "plan, turn, seq",
    "outbox": "seq",
}


async def bring_to(database: Database, revision: str) -> None:
    async with database.engine.begin() as connection:
        await connection.run_sync(_migrate, revision)
    await database.engine.dispose()  # connections know statements of the tables as they were


def _migrate(connection: Connection, revision: str) -> None:
    config = schema.alembic_config()
    config.attributes["connection"] = connection
    move = command.upgrade if revision > _current(connection) else command.downgrade
    move(config, revision)


def _current(connection: Connection) -> str:
    if not inspect(connection).has_table("alembic_version"):
        return ""
    versions = connection.execute(text("SELECT version_num FROM alembic_version"))
    return max((one for one in versions.scalars() if one.startswith("ledger_")), default="")


async def stored(database: Database) -> dict[str, list[dict[str, Any]]]:
    """All rows in the order that counts, whatever columns a version has added to them since."""
    found: dict[str, list[dict[str, Any]]] = {}
    async with database.reading() as session:
        tables = await (await session.connection()).run_sync(lambda connection: inspect(connection).get_table_names())
        for table, order in ORDERED.items():
            if table in tables:
                rows = await session.execute(text(f"SELECT * FROM {table} ORDER BY {order}"))
                found[table] = [_filled(row) for row in rows.mappings()]
    return found


def _filled(row: RowMapping) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


async def with_rows(database: Database, *, has_plans: bool) -> None:
    await finished(database, Past(first=1, last=30, handler=HANDLER))
    await dead(database, Past(first=31, last=40, handler=HANDLER))
    await waiting(database, Past(first=42, last=71, handler=HANDLER, per_order=3))
    if has_plans:
        await replayed(database, Past(first=11, last=20, handler=HANDLER), PLAN)


@pytest.mark.parametrize("before", ["ledger_0007", "ledger_0011", "ledger_0015"])
async def test_rows_are_the_same_afterwards_and_in_the_same_order(empty: Database, before: str) -> None:
    await bring_to(empty, before)
    has_plans = before > "ledger_0010"
    await with_rows(empty, has_plans=has_plans)
    rows = await stored(empty)
    assert [len(rows[table]) for table in ("events", "runs", "dead_letters")] == [70, 70, 10]

    await schema.upgrade(empty)
    await empty.engine.dispose()
    assert {table: found for table, found in (await stored(empty)).items() if table in rows} == rows
    await require_order(empty, has_plans=has_plans)

    await bring_to(empty, before)
    assert await stored(empty) == rows, "taken back"


# case: G2, O9
async def test_what_was_on_its_way_before_there_were_marks_is_marked(empty: Database) -> None:
    """By `ledger_0025`: else what the new code derives for its key would overtake it. What had come is left."""
    await bring_to(empty, "ledger_0019")
    await finished(empty, Past(first=1, last=2, handler=HANDLER))
    async with empty.transaction() as session:
        known = list(await session.scalars(text("SELECT id FROM events ORDER BY seq")))
        for name, published_at in ((known[0], AT), (known[1], None), ("drv_sent", AT), ("drv_unsent", None)):
            emit = text(EMIT).bindparams(bindparam("at", type_=UtcDateTime()), bindparam("sent", type_=UtcDateTime()))
            await session.execute(emit, {"name": name, "data": b"{}", "at": AT, "sent": published_at})
    await schema.upgrade(empty)
    await empty.engine.dispose()
    async with empty.reading() as session:
        marked = list(await session.scalars(text("SELECT event_id FROM outbox WHERE on_way ORDER BY seq")))
    assert marked == ["drv_unsent"]


async def require_order(database: Database, *, has_plans: bool) -> None:
    async with database.transaction() as session:
        claimed = await runs.claim(session, handler=HANDLER, worker="one", limit=5, now=AT, lease_s=15.0)
        assert [run.seq for run in claimed] == [42, 45, 48, 51, 54], "the heads of their lanes, by arrival"
        assert await queue.count_by_status(session) == {
            (HANDLER, "retrying"): 10, (HANDLER, "parked"): 20, (HANDLER, "dead"): 10,
        }  # fmt: skip
        planned: list[EventRow] = list(await items.next_events(session, PLAN, 3))
        assert [event.seq for event in planned] == ([11, 13, 15] if has_plans else [])
        await session.rollback()


# case: O8
@pytest.mark.parametrize("empty_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
async def test_an_upgrade_that_a_live_role_gets_in_the_way_of_is_done_all_the_same(
    empty: Database, empty_url: str
) -> None:
    """The role has a table that the migration wants, and wants one that the migration has: the server breaks one of
    the two off. It was the upgrade, which then said that the server does not run."""
    await bring_to(empty, "ledger_0017")
    role, has_outbox = Database(empty_url), asyncio.Event()

    async def waits() -> bool:
        async with empty.reading() as session:
            return bool(await session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))

    async def work() -> None:
        with suppress(LedgerUnavailable):  # who is broken off is the server's choice
            async with role.transaction() as session:
                await session.execute(text("SELECT count(*) FROM outbox"))
                has_outbox.set()
                await eventually(waits, within_s=20, what="the migration waits for the outbox")
                await session.execute(text("SELECT count(*) FROM reads"))

    async def upgraded() -> bool:
        await has_outbox.wait()
        return (await schema.upgrade(empty)).is_current

    _, is_current = await asyncio.gather(work(), upgraded())
    await role.stop()
    assert is_current


# case: O8
@pytest.mark.parametrize("empty_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
async def test_an_upgrade_waits_for_another_for_longer_than_for_a_table(
    empty: Database, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of many replicas begins with one, and the first works for minutes: the others ended after 30 s with
    `ledger_locked`, which blamed a backup or a shell, and were started again and again."""
    monkeypatch.setattr(schema, "_LOCK", uuid.uuid4().int >> 66)  # other tests upgrade at the same server
    second = Database(empty_url, lock_s=0.1)
    held = {"lock": schema._LOCK}

    async def has_waited() -> bool:
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart < clock_timestamp() - interval '0.5 s'"
        async with empty.reading() as session:
            return bool(await session.scalar(text(f"{waits} AND locktype = 'advisory'")))

    with capture_logs() as said:
        async with empty.transaction() as session:
            await session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), held)
            upgrade = asyncio.create_task(schema.upgrade(second))
            await eventually(lambda: _ended_or(upgrade, has_waited), within_s=20, what="it waits")
        assert (await upgrade).is_current
    await second.stop()
    assert [line["event"] for line in said] == ["another_upgrade_is_at_work"]


async def _ended_or(task: asyncio.Task[Any], condition: Callable[[], Awaitable[bool]]) -> bool:
    return task.done() or await condition()
