"""A handler's runs are found by the events they are on, however many: nobody else's, and none where there is none."""

from __future__ import annotations

from consumer.ledger import Database
from consumer.ledger.handling import runs
from tests.contract.ledger.facts import HANDLER, event, run, store


async def test_only_its_own_on_these_events(database: Database) -> None:
    await store(database, *[run(number, key=f"order:{number}") for number in range(4)], run(1, handler="other:one"))
    async with database.reading() as session:
        found = await runs.of_handler(session, HANDLER, {("default", f"evt_{number}") for number in (1, 2, 9)})
        nothing = await runs.of_handler(session, HANDLER, set())
    assert sorted(found) == [("default", "evt_1", HANDLER), ("default", "evt_2", HANDLER)]
    assert {key: (row.event_id, row.handler) for key, row in found.items()} == {key: key[1:] for key in found}
    assert nothing == {}


async def test_of_thousands_all_are_found(sqlite_ledger: Database) -> None:
    wanted = {("default", f"evt_{number}") for number in range(2500)}
    await store(sqlite_ledger, *[run(number, key=f"order:{number}") for number in range(2500)])
    async with sqlite_ledger.reading() as session:
        assert {key[:2] for key in await runs.of_handler(session, HANDLER, wanted)} == wanted


async def test_finishing_nothing_lets_nothing_go(sqlite_ledger: Database) -> None:
    async with sqlite_ledger.transaction() as session:
        assert await runs.finish(session, [], worker="w", now=event(1).received_at) == 0
