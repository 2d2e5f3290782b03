"""Leases: one holder per role at a time, tokens that only go up (case B26)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from consumer.clock import DrivenClock
from consumer.errors import LeaseLost
from consumer.ledger import Database, leases
from consumer.ledger.leases import FAR, LEASE_S, LED_LATELY, Lease
from consumer.ledger.tenure import Tenure
from tests.contract.ledger.facts import later, persistently

ROLE = "sync"


async def acquire(
    database: Database, holder: str, at_s: float = 0, *, role: str = ROLE, lease_s: float = 10
) -> Lease | None:
    return await persistently(database, lambda session: leases.acquire(session, role, holder, later(at_s), lease_s))


async def release(database: Database, lease: Lease) -> None:
    async with database.transaction() as session:
        await leases.release(session, lease)


# case: B26
async def test_of_many_who_ask_at_once_exactly_one_gets_it(database: Database, other: Database) -> None:
    """Round after round: when one holder's time is over, again one of all who ask takes over, with a higher token."""
    tokens = []
    for number in range(5):
        found = await asyncio.gather(
            *(acquire((database, other)[one % 2], f"{number}-{one}", at_s=number * 100) for one in range(8))
        )
        held = [lease for lease in found if lease is not None]
        assert len(held) == 1
        assert held[0].until == later(number * 100 + 10)
        tokens.append(held[0].token)
    assert tokens == sorted(set(tokens))


async def test_nobody_else_gets_it_before_it_ends(database: Database) -> None:
    first = await acquire(database, "one")
    assert first is not None
    assert await acquire(database, "two", 10) is None
    second = await acquire(database, "two", 10.000001)
    assert second is not None
    assert second.token > first.token
    assert await acquire(database, "one", 11) is None


# case: B26
async def test_anybody_may_look_who_holds_it(database: Database) -> None:
    async def look() -> Lease | None:
        async with database.reading() as session:
            return await leases.current(session, ROLE)

    assert await look() is None
    lease = await acquire(database, "one/backfill")
    assert lease is not None
    assert await look() == lease
    renewed = await acquire(database, "one/backfill", 5)
    assert renewed is not None
    assert await look() == renewed != lease


async def test_the_holder_keeps_it_by_asking_again(database: Database) -> None:
    found = [await acquire(database, "one", at_s) for at_s in (0, 8, 16)]
    assert await acquire(database, "two", 20) is None
    tokens = [lease.token for lease in found if lease is not None]
    assert len(tokens) == 3
    assert tokens == sorted(tokens)


async def test_a_released_role_is_free_at_once_and_the_token_still_goes_up(database: Database) -> None:
    first = await acquire(database, "one")
    assert first is not None
    await release(database, first)
    second = await acquire(database, "two", 0.5)
    assert second is not None
    assert second.token > first.token


async def test_who_lost_it_cannot_release_it(database: Database) -> None:
    lost = await acquire(database, "one")
    held = await acquire(database, "two", 11)
    assert lost is not None
    assert held is not None
    await release(database, lost)
    assert await acquire(database, "three", 12) is None


async def test_roles_are_apart(database: Database) -> None:
    assert await acquire(database, "one", role="sync") is not None
    assert await acquire(database, "two", role="relay") is not None


# case: B26
async def test_a_lease_that_a_wrong_clock_left_in_the_far_future_holds_nobody_off(database: Database) -> None:
    wrong = await acquire(database, "wrong", 3600)
    assert wrong is not None
    assert await acquire(database, "two", 3600 - FAR * 10 + 10) is None, "not far: it may be an honest one"
    right = await acquire(database, "two", 0)
    assert right is not None
    assert right.token > wrong.token


async def test_who_held_it_by_a_wrong_clock_is_not_said_to_hold_it(database: Database) -> None:
    await acquire(database, "a", role="sync/right", lease_s=LEASE_S)
    await acquire(database, "b", role="sync/wrong", at_s=FAR * LEASE_S, lease_s=LEASE_S)
    async with database.reading() as session:
        assert await leases.led(session, later(LEASE_S)) == ["right", "wrong"]
        assert await leases.led(session, later(0)) == ["right"]
        assert await leases.led(session, later(0) + LED_LATELY * 2) == ["wrong"]


# case: B26
@pytest.mark.parametrize("days", [-1, 0, 1])
async def test_a_tenure_goes_by_the_databases_clock_and_by_what_time_passed(
    database: Database, other: Database, days: int
) -> None:
    theirs = DrivenClock(DrivenClock().now() + timedelta(days=days))
    ours = DrivenClock()
    mine = Tenure(database, role=ROLE, holder="one", clock=ours, lease_s=30)
    rival = Tenure(other, role=ROLE, holder="two", clock=theirs, lease_s=30)
    assert await mine.take()
    assert not await rival.take()
    with pytest.raises(LeaseLost):
        _ = rival.token
    token = mine.token
    ours.advance(26)
    assert mine.holds
    assert await mine.take()
    ours.advance(26)
    assert mine.holds, "it was renewed"
    ours.advance(2)
    assert not mine.holds, "our time is over a little before the lease is"
    with pytest.raises(LeaseLost):
        _ = mine.token
    await mine.give_back()
    assert await rival.take()
    assert rival.token > token
    assert not await mine.take()
