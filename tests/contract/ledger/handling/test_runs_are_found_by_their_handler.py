"""A handler's runs are found by the events they are on, however many: nobody else's, and none where there is none."""

from __future__ import annotations

from dataclasses import replace

from consumer.ledger import Database, health
from consumer.ledger.handling import queue, runs
from tests.contract.ledger.facts import HANDLER, event, later, run, store


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
        assert await runs.finish(session, [], worker="w", now=event(1).received_at) == runs.Finished()


# case: O5
async def test_who_puts_off_an_event_for_a_day_waits(database: Database) -> None:
    """`RetryLater` costs no attempt, so it may go on for ever, and nothing said so."""
    day_s = 86_400.0
    tried = [replace(run(number, key=f"order:{number}", due_s=due_s), code="retry_later", reason="no keys left")
             for number, due_s in ((1, 2 * day_s), (2, day_s + 60))]  # fmt: skip
    never, over = run(3, handler="shop:mail", due_s=2 * day_s), replace(tried[0], handler="shop:pack", next_at=later(9))
    await store(database, *tried, never, over)
    async with database.reading() as session:
        assert await queue.put_off(session, later(day_s - 1)) == {}
        assert (await health.figures(session, later(day_s - 1))).waiting_handlers == ()
        found = await queue.put_off(session, later(day_s))
        assert {name: (one.since, one.reason) for name, one in found.items()} == {HANDLER: (later(0), "no keys left")}
        assert (await health.figures(session, later(day_s))).waiting_handlers == (HANDLER,)
