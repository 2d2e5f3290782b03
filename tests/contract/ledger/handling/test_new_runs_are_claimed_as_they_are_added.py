"""Runs that a transaction adds are claimed by it: only what any claim would find due, and nothing that was there."""

from __future__ import annotations

from collections.abc import Sequence

from consumer.ledger import Database
from consumer.ledger.handling import handlers, runs
from consumer.ledger.handling.runs import ClaimedRun, Run
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Event, declared, handles
from tests.contract.ledger.facts import HANDLER, NOW, claim, end, finish, lane, later, row, run, store


async def add_and_claim(database: Database, *added: Run, lease_s: float = 15.0) -> list[ClaimedRun]:
    """What a worker gets of the runs that it adds."""
    async with database.transaction() as session:
        await runs.add(session, added, NOW)
        return list(await runs.claim_new(session, added, worker="one", now=NOW, lease_s=lease_s))


def seqs(claimed: Sequence[ClaimedRun]) -> list[int]:
    return [one.seq for one in claimed]


# case: H1
async def test_nobody_else_gets_them_until_the_claim_ends_and_each_is_finished_as_any(database: Database) -> None:
    added = [run(number, key=f"order:{number}") for number in (2, 1)]
    claimed = await add_and_claim(database, *added, lease_s=10)
    assert seqs(claimed) == [1, 2]
    assert claimed[0] == ClaimedRun(application="default", event_id="evt_1", handler=HANDLER, seq=1, key="order:1",
                                    attempts=0, plan=None, created_at=NOW, due_at=NOW)  # fmt: skip
    assert await claim(database, "two", at_s=10) == []
    await end(database, "one", finish(claimed[0], RunStatus.SUCCEEDED))
    assert (await row(database, 1)).status == RunStatus.SUCCEEDED
    assert seqs(await claim(database, "two", at_s=10.000001)) == [2]


async def test_only_what_is_due_and_leads_its_lane(database: Database) -> None:
    await store(database, run(1, key="order:1", status=RunStatus.DEAD))
    behind, later_on = run(2, key="order:1"), run(3, key="order:3", due_s=1)
    done = run(4, key="order:4", status=RunStatus.SUCCEEDED, blocking=False)
    assert seqs(await add_and_claim(database, behind, later_on, done, *lane(5, 6, key="order:5"))) == [5]


async def test_none_of_a_handler_that_is_paused(database: Database) -> None:
    @handles("order.paid", name=HANDLER)
    async def ship(event: Event, ctx: Context) -> None:
        """Nothing."""

    found = declared(ship)
    assert found is not None
    async with database.transaction() as session:
        await handlers.register(session, [found], NOW)
        await handlers.pause(session, HANDLER, by="op", reason="looks odd", now=NOW)
    assert await add_and_claim(database, run(1)) == []
    async with database.transaction() as session:
        await handlers.resume(session, HANDLER)
    assert seqs(await claim(database)) == [1]


# case: H1, G2
async def test_a_run_that_was_there_already_is_not_begun_again(database: Database) -> None:
    await store(database, run(1), run(2, key="order:2"))
    [first, second] = await claim(database, "two")
    await end(database, "two", finish(first, RunStatus.SUCCEEDED))
    assert await add_and_claim(database, run(1), run(2, key="order:2")) == []
    assert (await row(database, 2)).claimed_by == "two"
    await end(database, "two", finish(second, RunStatus.RETRYING, blocking=True, next_s=5))
    assert await add_and_claim(database, run(2, key="order:2")) == []
    assert (await row(database, 2)).next_at == later(5)
