"""Bookmarks: kept by whoever leads last; one who was overtaken hears that it was (case B26)."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.errors import LeaseLost
from consumer.ledger import Database
from consumer.ledger.reading import sync_state
from tests.contract.ledger.facts import NOW


async def keep(
    database: Database, token: int, *, walk: str = "events", application: str = "default", **state: Any
) -> None:
    async with database.transaction() as session:
        await sync_state.keep(session, application, walk, state, token=token, now=NOW)


async def load(database: Database, walk: str = "events", application: str = "default") -> dict[str, Any] | None:
    async with database.reading() as session:
        return await sync_state.load(session, application, walk)


async def test_what_was_kept_last_is_loaded(database: Database) -> None:
    assert await load(database) is None
    await keep(database, 1, cursor="a")
    await keep(database, 1, cursor="b", ids=["ö"])
    await keep(database, 3, cursor="c")
    assert await load(database) == {"cursor": "c"}


# case: B26
async def test_an_overtaken_leader_moves_nothing(database: Database) -> None:
    await keep(database, 5, cursor="new")
    with pytest.raises(LeaseLost):
        await keep(database, 4, cursor="old")
    assert await load(database) == {"cursor": "new"}


# case: G8
async def test_walks_and_applications_are_apart(database: Database) -> None:
    await keep(database, 5, cursor="a")
    await keep(database, 1, walk="orders", cursor="b")
    await keep(database, 1, application="second", cursor="c")
    assert [await load(database), await load(database, "orders"), await load(database, "events", "second")] == [
        {"cursor": "a"}, {"cursor": "b"}, {"cursor": "c"},
    ]  # fmt: skip
