"""As many ids as there are can be told apart in little memory, and nothing of it stays in the database."""

from __future__ import annotations

import pytest

from consumer.ledger import Database
from consumer.ledger.rebuilding import told
from consumer.ledger.rebuilding.told import Told


# case: G9
async def test_none_is_forgotten_and_few_are_held(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "HELD_MAX", 3)
    for _ in range(2):  # on the same connection again
        async with database.transaction() as session:
            ids = Told(session)
            for number in range(10):
                await ids.add([f"drv_{number}", f"drv_{number}b"])
                assert len(ids.held) <= 3
            asked = [*(f"drv_{number}" for number in range(12)), "drv_9b", "drv_x"]
            assert await ids.without(asked) == {"drv_10", "drv_11", "drv_x"}
            await ids.close()
            assert await Told(session).without(["drv_1"]) == {"drv_1"}, "another one knows nothing of it"


# case: G9
async def test_what_is_undone_leaves_no_table(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "HELD_MAX", 0)

    async def undone() -> None:
        async with database.transaction() as session:
            await Told(session).add(["drv_1"])
            raise LookupError("undone")

    for _ in range(2):
        with pytest.raises(LookupError):
            await undone()
