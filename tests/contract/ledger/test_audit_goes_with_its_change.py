"""Audit: a row per change, in the transaction of the change, never without it (case G12)."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger import Database, audit
from consumer.ledger.tables import AuditRow
from tests.contract.ledger.facts import NOW, undone


async def rows(database: Database) -> list[AuditRow]:
    async with database.reading() as session:
        return list((await session.execute(select(AuditRow).order_by(AuditRow.__table__.c.id))).scalars())


# case: G12
async def test_who_what_why_and_from_what_to_what_are_kept(database: Database) -> None:
    async with database.transaction() as session:
        for number in (1, 2):
            audit.note(
                session,
                at=NOW,
                application="default",
                actor="ops",
                action="handler.paused",
                subject=f"handler:shop:ship{number}",
                before='{"paused": false}',
                after='{"paused": true}',
                reason="Müll",
                code_version="v1",
            )
    found = await rows(database)
    assert [one.subject for one in found] == ["handler:shop:ship1", "handler:shop:ship2"]
    one = found[0]
    assert (one.at, one.actor, one.action, one.before, one.after, one.reason, one.code_version) == (
        NOW, "ops", "handler.paused", '{"paused": false}', '{"paused": true}', "Müll", "v1",
    )  # fmt: skip


# case: G12
async def test_what_did_not_happen_leaves_no_row(database: Database) -> None:
    async def change(session: AsyncSession) -> None:
        audit.note(session, at=NOW, application="default", actor="ops", action="x.done", subject="order:1")
        await session.flush()

    await undone(database, change)
    assert await rows(database) == []
