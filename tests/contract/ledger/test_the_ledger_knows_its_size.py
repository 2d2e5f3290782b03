"""What the database takes on its disk is known, and grows with what is kept."""

from __future__ import annotations

from sqlalchemy import text

from consumer.ledger import Database
from consumer.ledger.size import size_bytes


async def test_it_grows_with_what_is_kept(database: Database) -> None:
    async with database.reading() as session:
        before = await size_bytes(session)
    async with database.transaction() as session:
        for number in range(20):
            kept = {"name": f"large/{number}", "value": "x" * 100_000}
            await session.execute(text("INSERT INTO budgets (name, value) VALUES (:name, :value)"), kept)
    async with database.reading() as session:
        after = await size_bytes(session)
    assert before > 10_000
    assert after > before + 20_000, "PostgreSQL packs what repeats itself"
