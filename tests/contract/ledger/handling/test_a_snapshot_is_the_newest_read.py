"""A snapshot is the recorded read with the highest version, of that object alone, found by one index."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event as engine_event
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.events import Event, Source, Trust
from consumer.ledger import Database
from consumer.ledger.handling import events, snapshots
from consumer.ledger.reading.observation import ObjectKind, Observation
from consumer.plugin.snapshot import SnapshotKind
from tests.contract.ledger.facts import NOW, event, later, undone


def read(
    version: int, status: str = "PAID", *, kind: ObjectKind = "order", of: str = "o1", application: str = "default"
) -> Event:
    """An observation as the stages that read the service publish it."""
    return Observation(
        application=application,
        kind=kind,
        object_id=of,
        version=version,
        read_at=later(version),
        record={"status": status, "n": version},
    ).event()


async def record(database: Database, *given: Event) -> None:
    async with database.transaction() as session:
        await events.record(session, given, NOW)


async def newest(database: Database, kind: SnapshotKind = "order", of: str = "o1", application: str = "default") -> Any:
    async with database.reading() as session:
        return await snapshots.newest(session, application, kind, of)


# case: H2
async def test_it_is_what_was_read(database: Database) -> None:
    await record(database, event(1, key="order:o1"), read(3, "EXPIRED"))
    found = await newest(database)
    assert (found.application, found.kind, found.id, found.status) == ("default", "order", "o1", "EXPIRED")
    assert (found.version, found.read_at, found.record) == (3, later(3), {"status": "EXPIRED", "n": 3})
    assert found.find("/nothing", "/n") == 3


# case: H2, A40
@pytest.mark.parametrize("seed", range(3))
async def test_the_highest_version_counts_whatever_came_last(database: Database, seed: int) -> None:
    versions = list(range(1, 11))
    random.Random(seed).shuffle(versions)
    for version in versions:
        await record(database, read(version))
    await record(database, read(4))  # again, which is a duplicate
    assert (await newest(database)).version == 10


async def test_only_the_newest_arrivals_are_compared_however_many_there_are(database: Database) -> None:
    await record(database, *(read(version) for version in range(1, 200)))
    assert (await newest(database)).version == 199


# case: H2, G8
async def test_other_objects_kinds_and_applications_are_apart(database: Database) -> None:
    await record(
        database, read(9, of="o2"), read(9, kind="subscription"), read(9, application="second"),
        read(9, kind="payment"), read(1),
    )  # fmt: skip
    assert (await newest(database)).version == 1
    assert (await newest(database, "subscription")).version == 9
    assert (await newest(database, application="second")).version == 9


async def test_nothing_read_is_none(database: Database) -> None:
    await record(database, event(1, key="order:o1"))
    assert await newest(database) is None


async def test_what_only_looks_like_a_read_is_none(database: Database) -> None:
    """A webhook may have any type, and a body of anybody's: only what was read with our credentials counts."""
    forged = replace(read(99), id="evt_1", trust=Trust.SIGNED, source=Source.WEBHOOK)
    odd = [
        replace(read(50 + number), raw=raw)
        for number, raw in enumerate(
            (b"", b"[]", b"{}", b'{"data":1}', b'{"data":{"version":1}}', b'{"data":{"version":true,"record":{}}}',
             b'{"data":{"version":"1","record":{}}}', b'{"data":{"version":1,"record":[]}}', b"\xff\x00")
        )
    ]  # fmt: skip
    await record(database, forged, *odd)
    assert await newest(database) is None
    await record(database, read(2))
    assert (await newest(database)).version == 2


async def test_a_record_without_a_status_has_none(database: Database) -> None:
    await record(database, replace(read(1), raw=b'{"data":{"version":1,"record":{"status":7}}}'))
    found = await newest(database)
    assert (found.status, found.record, found.read_at) == (None, {"status": 7}, later(1))


# case: H2
async def test_a_transaction_sees_its_own_and_nobody_elses(database: Database) -> None:
    await record(database, read(1))
    own: list[Any] = []

    async def look(session: AsyncSession) -> None:
        await events.record(session, [read(2)], NOW)
        own.append(await snapshots.newest(session, "default", "order", "o1"))

    await undone(database, look)
    assert (own[0].version, (await newest(database)).version) == (2, 1)


async def test_it_is_found_by_its_index(database: Database) -> None:
    """Among many, and although most of them are observations too."""
    for start in range(0, 4000, 500):
        await record(database, *(read(n + 1, of=f"o{n}") for n in range(start, start + 500)))
    seen: list[tuple[str, Any]] = []

    def keep(_c: Any, _k: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    engine = database.engine.sync_engine
    engine_event.listen(engine, "before_cursor_execute", keep)
    try:
        await newest(database)
    finally:
        engine_event.remove(engine, "before_cursor_execute", keep)
    ((statement, parameters),) = [one for one in seen if "FROM events" in one[0]]
    explain = "EXPLAIN " if database.dialect == "postgresql" else "EXPLAIN QUERY PLAN "
    async with database.engine.connect() as connection:
        await connection.execute(text("ANALYZE"))
        plan = (await connection.exec_driver_sql(explain + statement, tuple(parameters))).all()
    told = "\n".join(str(row) for row in plan)
    assert "ix_events_key" in told, told
    assert "SCAN events" not in told
