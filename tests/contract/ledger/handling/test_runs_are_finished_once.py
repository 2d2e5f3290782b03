"""Finishing: a success counts, whoever held the claim; a failure counts only for who holds it; both only once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from consumer.ledger import Database
from consumer.ledger.handling import attempts, queue, runs
from consumer.ledger.handling.runs import Finished
from consumer.ledger.tables import REASON_CHARS, RunStatus
from consumer.plugin import RetryLater
from tests.contract.ledger.facts import (
    HANDLER,
    NOW,
    attempt,
    claim,
    end,
    finish,
    lane,
    later,
    persistently,
    row,
    run,
    statuses,
    store,
)


# case: F30, H1
async def test_a_success_counts_although_the_claim_was_lost(database: Database) -> None:
    await store(database, *lane(1, 2))
    slow = (await claim(database, "slow", lease_s=1))[0]
    await claim(database, "quick", at_s=5)
    await end(database, "slow", finish(slow))
    assert await statuses(database, (1, 2)) == ["succeeded", "retrying"]


# case: F30, H1, R10
async def test_a_success_counts_although_the_run_died_of_another_workers_attempt(database: Database) -> None:
    """That one was told that the parcel had gone already."""
    await store(database, *lane(1, 2), run(3, key="order:3"))
    slow, also = await claim(database, "slow", lease_s=1)
    quick = (await claim(database, "quick", at_s=5, limit=1))[0]
    await end(database, "quick", finish(quick, RunStatus.DEAD, blocking=True))
    assert await statuses(database, (1, 2)) == ["dead", "parked"]
    async with database.transaction() as session:
        done = await runs.finish(session, [finish(slow), finish(also)], worker="slow", now=later(6))
    assert done == Finished(let_go=1, stored=frozenset({slow.id, also.id}), revived=frozenset({slow.id}))
    assert await statuses(database, (1, 2, 3)) == ["succeeded", "retrying", "succeeded"]
    found = await row(database, 1)
    assert (found.code, found.reason, found.blocking, found.updated_at) == (None, None, False, later(6))


async def test_a_success_does_not_count_where_the_run_was_given_up_or_a_plan_began_it_anew(database: Database) -> None:
    await store(database, run(1), run(2, key="order:2"))
    claimed = await claim(database, "slow", lease_s=1)
    old = [finish(replace(one, plan="old")) for one in claimed]
    for one in await claim(database, "quick", at_s=5):
        await end(database, "quick", finish(one, RunStatus.DEAD if one.seq == 1 else RunStatus.SKIPPED, blocking=True))
    async with database.transaction() as session:
        assert await runs.finish(session, old, worker="slow", now=later(6)) == Finished()
        current = [finish(one) for one in claimed if one.seq == 2]
        assert await runs.finish(session, current, worker="slow", now=later(6)) == Finished()
    assert await statuses(database, (1, 2)) == ["dead", "skipped"]


async def test_which_ends_count_is_told(database: Database) -> None:
    await store(database, *(run(number, key=f"order:{number}") for number in (1, 2, 3)))
    lost, late, kept = await claim(database, "slow", lease_s=1)
    quick = await claim(database, "quick", at_s=5, limit=2)
    await end(database, "quick", *(finish(one) for one in quick if one.seq == 2))
    failed = [finish(one, RunStatus.RETRYING, blocking=True, next_s=9) for one in (lost, kept)]
    async with database.transaction() as session:
        done = await runs.finish(session, [*failed, finish(late)], worker="slow", now=later(6))
    assert done == Finished(stored=frozenset({kept.id}))


async def test_a_failure_does_not_count_when_the_claim_was_lost(database: Database) -> None:
    await store(database, *lane(1, 2))
    slow = (await claim(database, "slow", lease_s=1))[0]
    await claim(database, "quick", at_s=5, lease_s=10)
    await end(database, "slow", finish(slow, RunStatus.DEAD))
    found = await row(database, 1)
    assert (found.status, found.attempts, found.claimed_by, found.claimed_until) == (
        "retrying", 0, "quick", later(15),
    )  # fmt: skip
    assert (await row(database, 2)).status == "parked"


async def test_what_succeeded_is_never_changed_again(database: Database) -> None:
    await store(database, run(1))
    slow = (await claim(database, "slow", lease_s=1))[0]
    quick = (await claim(database, "quick", at_s=5))[0]
    await end(database, "quick", finish(quick))
    await end(database, "slow", finish(slow, RunStatus.RETRYING, blocking=True, next_s=9))
    await end(database, "slow", finish(slow))
    found = await row(database, 1)
    assert (found.status, found.attempts, found.blocking, found.updated_at) == ("succeeded", 1, False, later(1))


async def test_what_succeeded_in_one_transaction_is_known_in_the_order_in_which_it_was_handled(
    database: Database,
) -> None:
    # case: G9
    first, then, last = (run(number, status=RunStatus.SUCCEEDED, blocking=False) for number in (2, 1, 3))
    await store(database, first, run(4, key="order:2"), then, last)
    found = {number: (await row(database, number)).updated_at - NOW for number in (1, 2, 3, 4)}
    assert found == {2: 0 * runs.INSTANT, 4: 0 * runs.INSTANT, 1: runs.INSTANT, 3: 2 * runs.INSTANT}


async def test_a_finished_run_is_free_of_its_claim(database: Database) -> None:
    await store(database, run(1))
    await end(database, "one", finish((await claim(database))[0], RunStatus.RETRYING, blocking=True, next_s=3))
    found = await row(database, 1)
    assert (found.claimed_by, found.claimed_until, found.next_at, found.code) == (
        None, None, later(3), "handler_failed",
    )  # fmt: skip


async def test_successes_and_failures_of_one_group_are_told_apart(database: Database) -> None:
    await store(database, *(run(number, key=f"order:{number}") for number in range(6)))
    claimed = await claim(database)
    done = [finish(one) if one.seq % 2 else finish(one, RunStatus.RETRYING, blocking=True, next_s=4) for one in claimed]
    await end(database, "one", *done)
    assert await statuses(database, range(6)) == ["retrying", "succeeded"] * 3


async def test_workers_that_finish_the_same_runs_at_once_end_in_one_state(database: Database, other: Database) -> None:
    numbers = range(0, 80, 2)
    await store(database, *(one for number in numbers for one in lane(number, number + 1, key=f"order:{number}")))
    mine = await claim(database, "one", lease_s=1)
    yours = await claim(database, "two", at_s=5)
    assert {one.id for one in mine} == {one.id for one in yours}

    async def finishes(ledger: Database, worker: str, backwards: bool) -> None:
        done = [finish(one) for one in sorted(mine, key=lambda one: one.seq, reverse=backwards)]
        await persistently(ledger, lambda session: runs.finish(session, done, worker=worker, now=later(6)))

    await asyncio.gather(finishes(database, "one", False), finishes(other, "two", True))
    assert await statuses(database, numbers) == ["succeeded"] * 40
    assert await statuses(database, (number + 1 for number in numbers)) == ["retrying"] * 40


async def test_a_long_reason_is_cut(database: Database) -> None:
    await store(database, run(1))
    claimed = (await claim(database))[0]
    failed = finish(claimed, RunStatus.DEAD)
    long = runs.Finish(**{**failed.__dict__, "reason": "ä" * 2000})
    await end(database, "one", long)
    assert (await row(database, 1)).reason == "ä" * REASON_CHARS


async def test_attempts_are_kept_in_order(database: Database) -> None:
    tries = [attempt(number, started_s=number, code="handler_failed") for number in (1, 2, 3)]
    tries[0] = replace(tries[0], reason="x" * 2000)
    async with database.transaction() as session:
        await attempts.add(session, tries[:2])
        await attempts.add(session, [])
    async with database.transaction() as session:
        await attempts.add(session, tries)  # the first two again: their commit was not acknowledged
    async with database.reading() as session:
        kept = await attempts.of_event(session, "default", "evt_1")
        assert await attempts.of_event(session, "second", "evt_1") == []
    assert [(one.number, one.started_at) for one in kept] == [(number, later(number)) for number in (1, 2, 3)]
    assert [len(one.reason or "") for one in kept] == [REASON_CHARS, 0, 0]


# case: F30, O7
async def test_of_tries_that_are_put_off_one_after_another_the_newest_are_kept(database: Database) -> None:
    """A handler may look for its warehouse every minute, for months: what it saw last is told, and the ledger does not
    grow with it."""
    assert RetryLater.code == attempts.PUT_OFF
    for minute in range(100):
        one = attempt(3, started_s=minute)
        other = replace(one, event_id="evt_2", number=minute)
        failed = attempt(3, started_s=minute, code="handler_failed", worker="failed")
        async with database.transaction() as session:
            await attempts.add(session, [one, other, *[failed] * (minute < 3)])
    async with database.reading() as session:
        kept = await attempts.of_event(session, "default", "evt_1")
        assert len(await attempts.of_event(session, "default", "evt_2")) == 100, "each has a number of its own"
    assert [one.started_at for one in kept if one.code == attempts.PUT_OFF] == [
        later(minute) for minute in range(80, 100)
    ]
    assert [one.started_at for one in kept if one.worker == "failed"] == [later(minute) for minute in range(3)]


async def test_counts_leave_out_what_succeeded(database: Database) -> None:
    await store(
        database,
        *lane(1, 2, 3),
        run(4, key="order:4", status=RunStatus.SUCCEEDED, blocking=False),
        run(5, key="order:5", status=RunStatus.DEAD),
        run(5, key="order:5", handler="shop:mail", status=RunStatus.DEAD),
    )
    async with database.reading() as session:
        assert await queue.count_by_status(session) == {
            (HANDLER, "retrying"): 1,
            (HANDLER, "parked"): 2,
            (HANDLER, "dead"): 1,
            ("shop:mail", "dead"): 1,
        }
