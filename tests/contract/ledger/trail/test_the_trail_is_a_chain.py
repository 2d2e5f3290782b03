"""The audit trail is one chain, however many write and seal at once; who writes waits for nobody who seals."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sqlalchemy import Table, select, text

from consumer.ledger import Database, audit
from consumer.ledger.tables import AuditRow
from consumer.ledger.trail import sealing
from consumer.ledger.trail.chain import START, Export, linked
from consumer.ledger.trail.verification import verified
from tests.contract.ledger.facts import NOW

AUDIT: Table = AuditRow.__table__
WRITERS, EACH = 4, 25


async def note(database: Database, number: int) -> None:
    async with database.transaction() as session:
        audit.note(
            session, at=NOW + timedelta(seconds=number), application="default", actor="ops", action="x.done",
            subject=f"order:{number}", before=None, after='{"ü": 1}', reason="why",
        )  # fmt: skip


async def sealed(database: Database, limit: int = sealing.BATCH) -> int:
    async with database.transaction() as session:
        return await sealing.seal(session, limit)


async def exported(database: Database) -> list[bytes]:
    async with database.reading() as session:
        end = await sealing.head(session)
        found = await sealing.entries(session, 0, end.number, 10_000)
    export = Export(end.number, end.hash)
    return [export.begin(), *(export.entry(one) for one in found), export.end()]


# case: G12
async def test_writers_and_sealers_at_once_make_one_chain(database: Database) -> None:
    async def write(worker: int) -> None:
        for number in range(EACH):
            await note(database, worker * EACH + number)

    async def seal() -> None:
        for _ in range(10):
            await sealed(database, 7)

    await asyncio.gather(*(write(worker) for worker in range(WRITERS)), *(seal() for _ in range(3)))
    while await sealed(database):
        pass
    found = verified(await exported(database))
    assert (found.fault, found.entries) == (None, WRITERS * EACH)
    async with database.reading() as session:
        numbers = list(await session.scalars(select(AUDIT.c.number).order_by(AUDIT.c.number)))
        assert numbers == list(range(1, WRITERS * EACH + 1))


async def test_the_hashes_are_those_of_the_contents(database: Database) -> None:
    await note(database, 1)
    await sealed(database)
    async with database.reading() as session:
        [entry] = await sealing.entries(session, 0, 1)
    assert entry["hash"] == linked(START, 1, entry)
    assert entry["at"] == "2026-01-01T12:00:01.123456+00:00", "the same on both databases"
    assert await sealed(database) == 0


async def test_a_writer_does_not_wait_for_who_seals(database: Database) -> None:
    if database.dialect == "sqlite":
        return  # one writer at a time, whoever it is
    await note(database, 1)
    async with database.transaction() as session:
        assert await sealing.seal(session) == 1
        async with asyncio.timeout(5):
            await note(database, 2)
    assert await sealed(database) == 1, "what came meanwhile comes next"


async def test_what_was_changed_in_the_ledger_is_found(database: Database) -> None:
    for number in range(5):
        await note(database, number)
    await sealed(database)
    async with database.transaction() as session:
        await session.execute(text("UPDATE audit SET actor = 'mallory' WHERE subject = 'order:2'"))
    assert verified(await exported(database)).fault == "line 4 (entry 3) was changed"
    async with database.transaction() as session:
        await session.execute(text("DELETE FROM audit WHERE subject = 'order:2'"))
    assert verified(await exported(database)).fault == "entry 3 was taken out before line 4"
