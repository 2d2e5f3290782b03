"""Claims: due runs, oldest first, each by one worker at a time, for a limited time."""

from __future__ import annotations

import asyncio
import random

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger import Database
from consumer.ledger.handling import handlers, queue, runs
from consumer.ledger.handling.runs import ClaimedRun
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Event, declared, handles
from tests.contract.ledger.facts import HANDLER, claim, end, finish, later, persistently, row, run, store, undone


def lonely(number: int, *, due_s: float = 0.0, handler: str = HANDLER) -> runs.Run:
    """A run with a lane of its own."""
    return run(number, key=f"order:{number}", due_s=due_s, handler=handler)


def ids(claimed: list[ClaimedRun]) -> list[int]:
    return [one.seq for one in claimed]


async def test_oldest_first_and_no_more_than_asked_for(database: Database) -> None:
    await store(database, lonely(1, due_s=-1), lonely(2, due_s=-3), lonely(3, due_s=-1), lonely(4, due_s=-2))
    assert ids(await claim(database, limit=3)) == [2, 4, 1]
    assert ids(await claim(database, "two", limit=3)) == [3]


async def test_where_some_lead_nothing_others_are_claimed_for_them_and_no_more_than_asked_for(
    database: Database,
) -> None:
    await store(
        database, lonely(1, due_s=-9), run(2, key="order:1", due_s=-8), *(lonely(n, due_s=n - 10) for n in (3, 4, 5))
    )
    assert ids(await claim(database, limit=3)) == [1, 3, 4]
    assert (await row(database, 2)).status == RunStatus.PARKED
    assert (await row(database, 2)).next_at is None


async def test_only_what_is_due_and_only_for_this_handler(database: Database) -> None:
    await store(
        database,
        lonely(1, due_s=0.000001),
        lonely(2),
        lonely(3, handler="shop:mail"),
        run(4, key="order:4", status=RunStatus.PARKED),
        run(5, key="order:5", status=RunStatus.DEAD),
        run(6, key="order:6", status=RunStatus.SUCCEEDED, blocking=False),
        run(7, key="order:7", status=RunStatus.SKIPPED, blocking=False),
    )
    assert ids(await claim(database)) == [2]
    assert ids(await claim(database, at_s=0.000001)) == [1]


async def test_a_claim_tells_what_the_worker_needs(database: Database) -> None:
    await store(database, lonely(1, due_s=-5))
    first = (await claim(database))[0]
    assert (first.id, first.key, first.attempts, first.due_at) == (
        ("default", "evt_1", HANDLER), "order:1", 0, later(-5),
    )  # fmt: skip
    await end(database, "one", finish(first, RunStatus.RETRYING, blocking=True, next_s=2))
    assert (await claim(database, at_s=2))[0].attempts == 1


async def test_nobody_else_gets_a_claimed_run_until_the_claim_ends(database: Database) -> None:
    await store(database, lonely(1))
    await claim(database, "one", lease_s=10)
    assert await claim(database, "two", at_s=10) == []
    assert ids(await claim(database, "two", at_s=10.000001)) == [1]
    assert (await row(database, 1)).claimed_by == "two"


async def test_a_renewed_claim_is_kept(database: Database) -> None:
    await store(database, lonely(1))
    held = (await claim(database, "one", lease_s=10))[0]
    async with database.transaction() as session:
        assert await runs.renew(session, [held.id], worker="one", now=later(9), lease_s=10) == {held.id}
    assert await claim(database, "two", at_s=18) == []
    assert ids(await claim(database, "two", at_s=20)) == [1]


# case: G2
@pytest.mark.parametrize("database_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
async def test_a_run_that_its_attempt_locks_holds_up_no_other_claim_and_is_nobodys_until_that_ends(
    database: Database, other: Database
) -> None:
    """On SQLite whoever writes is alone, and all others wait for him."""
    await store(database, lonely(1), lonely(2))
    attempted, effect = await claim(database, "one", lease_s=10)
    async with database.transaction() as at_it:
        assert await runs.still_claimed(at_it, attempted, worker="one")
        async with asyncio.timeout(10), other.transaction() as session:
            both = [attempted.id, effect.id]
            assert await runs.renew(session, both, worker="one", now=later(9), lease_s=10) == {effect.id}
        assert await claim(other, "two", at_s=18) == [], "the claim of the first has ended, its attempt has not"
        await runs.finish(at_it, [finish(attempted)], worker="one", now=later(18))
    assert ids(await claim(other, "two", at_s=20)) == [2]


# case: G2
@pytest.mark.parametrize("database_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
async def test_an_attempt_that_left_nothing_behind_is_anothers_once_its_claim_has_ended(
    database: Database, other: Database
) -> None:
    await store(database, lonely(1))
    attempted = (await claim(database, "one", lease_s=10))[0]

    async def breaks_off(session: AsyncSession) -> None:
        assert await runs.still_claimed(session, attempted, worker="one")
        assert await claim(other, "two", at_s=18) == []

    await undone(database, breaks_off)
    assert ids(await claim(other, "two", at_s=18)) == [1]
    await end(database, "one", finish(attempted, RunStatus.DEAD, blocking=True))
    assert (await row(database, 1)).claimed_by == "two"


async def test_a_lost_claim_cannot_be_renewed_or_given_back(database: Database) -> None:
    await store(database, lonely(1))
    lost = (await claim(database, "one", lease_s=1))[0]
    await claim(database, "two", at_s=5, lease_s=10)
    async with database.transaction() as session:
        assert await runs.renew(session, [lost.id], worker="one", now=later(6), lease_s=1000) == set()
        await runs.give_back(session, [lost.id], worker="one")
    found = await row(database, 1)
    assert (found.claimed_by, found.claimed_until) == ("two", later(15))


async def test_what_is_given_back_is_there_for_others_at_once(database: Database) -> None:
    await store(database, lonely(1))
    held = (await claim(database, "one"))[0]
    async with database.transaction() as session:
        await runs.give_back(session, [held.id], worker="one")
    assert ids(await claim(database, "two")) == [1]


async def test_still_claimed_says_who_may_write(database: Database) -> None:
    await store(database, lonely(1))
    held = (await claim(database, "one", lease_s=1))[0]
    async with database.transaction() as session:
        assert await runs.still_claimed(session, held, worker="one")
        assert not await runs.still_claimed(session, held, worker="two")
    await claim(database, "two", at_s=5)
    async with database.transaction() as session:
        assert not await runs.still_claimed(session, held, worker="one")
    await end(database, "two", finish(held))
    async with database.transaction() as session:
        assert not await runs.still_claimed(session, held, worker="two")


# case: F3, G2
async def test_concurrent_claimers_never_share_a_run(database: Database, other: Database) -> None:
    await store(database, *(lonely(number) for number in range(120)))

    async def claimer(name: str, ledger: Database, chance: random.Random) -> list[int]:
        found: list[int] = []
        empty = 0
        while empty < 3:  # a locked row is passed over, so an empty round alone does not say that all are gone
            claimed = await persistently(
                ledger,
                lambda session: runs.claim(
                    session, handler=HANDLER, worker=name, limit=chance.randint(1, 9), now=later(1), lease_s=1000
                ),
            )
            found += [one.seq for one in claimed]
            empty = 0 if claimed else empty + 1
        return found

    everyone = await asyncio.gather(
        *(claimer(f"w{number}", (database, other)[number % 2], random.Random(number)) for number in range(6))
    )
    taken = [number for found in everyone for number in found]
    assert sorted(taken) == list(range(120))


async def test_next_due_is_told_per_handler_and_leaves_out_what_is_worked_on(database: Database) -> None:
    await store(database, lonely(1, due_s=5), lonely(2, due_s=3), lonely(3, due_s=-1, handler="shop:mail"))
    async with database.reading() as session:
        assert await queue.next_due(session, later(0)) == {HANDLER: later(3), "shop:mail": later(-1)}
    await claim(database, handler="shop:mail", lease_s=10)
    async with database.reading() as session:
        assert await queue.next_due(session, later(1)) == {HANDLER: later(3)}
        assert await queue.next_due(session, later(11)) == {HANDLER: later(3), "shop:mail": later(-1)}


@handles("order.paid", name="shop:mail")
async def mails(event: Event, ctx: Context) -> None:
    """Nothing."""


async def test_of_a_handler_that_is_paused_none_is_claimed(database: Database) -> None:
    mail = declared(mails)
    assert mail is not None
    await store(database, lonely(1, due_s=-1), lonely(2, due_s=-1, handler="shop:mail"))
    async with database.transaction() as session:
        await handlers.register(session, [mail], later(-2))
        await handlers.pause(session, "shop:mail", by="ana", reason="stocktaking", now=later(0))
    assert await claim(database, handler="shop:mail") == []
    assert len(await claim(database)) == 1
    async with database.transaction() as session:
        await handlers.resume(session, "shop:mail")
    assert len(await claim(database, handler="shop:mail")) == 1
