"""Leader: one at a time, the next one within a bound, nobody writes with an old token."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from consumer.clock import DrivenClock, SystemClock
from consumer.errors import AnotherLeads, LeaseLost
from consumer.ledger import Database
from consumer.ledger.reading import sync_state
from consumer.sync.leader import Leader
from tests.support.clocks import WrongClock


def leader(database: Database, holder: str, lease_s: float = 1.5) -> Leader:
    return Leader(database, role="sync/default", holder=holder, clock=SystemClock(), lease_s=lease_s)


class Work:
    """Work that says when it runs, and how it ended."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.ended = asyncio.Event()
        self.cancelled = False

    async def __call__(self, stop: asyncio.Event) -> None:
        self.running.set()
        try:
            await stop.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.running.clear()
            self.ended.set()


@pytest.mark.slow
async def test_only_one_of_two_leads_and_a_clean_stop_hands_over_at_once(database: Database) -> None:
    # case: B26
    first, second = leader(database, "one"), leader(database, "two")
    stops = asyncio.Event(), asyncio.Event()
    works = Work(), Work()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(first.run(stops[0], works[0]))
        await works[0].running.wait()
        group.create_task(second.run(stops[1], works[1]))
        await asyncio.sleep(2.0)  # more than a whole lease: renewing keeps it
        assert first.leads
        assert not second.leads
        assert not works[1].running.is_set()
        token = first.token
        stops[0].set()
        await works[1].running.wait()
        assert not works[0].cancelled
        assert second.token > token
        stops[1].set()


@pytest.mark.slow
async def test_when_the_leader_dies_another_takes_over_within_a_lease_and_a_third(database: Database) -> None:
    # case: B26, G5
    dead = leader(database, "dead")
    assert await dead._take()  # and never heard of again, as after kill -9
    stop, work = asyncio.Event(), Work()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        began = asyncio.get_running_loop().time()
        heir = leader(database, "heir")
        group.create_task(heir.run(stop, work))
        await work.running.wait()
        assert asyncio.get_running_loop().time() - began < 1.5 * 4 / 3 + 1.5
        with pytest.raises(LeaseLost):
            _ = dead.token
        stop.set()


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "behind"])
async def test_a_machine_whose_clock_is_wrong_neither_steals_the_lead_nor_keeps_it_beyond_its_death(
    database: Database, ahead: timedelta
) -> None:
    # case: B26, G5
    right = leader(database, "right")
    wrong = Leader(database, role="sync/default", holder="wrong", clock=WrongClock(ahead), lease_s=1.5)
    for _ in range(5):
        assert await right._take()
        assert not await wrong._take()
    await right._give_back()
    assert await wrong._take()  # and never heard of again, as after kill -9
    stop, work = asyncio.Event(), Work()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        began = asyncio.get_running_loop().time()
        group.create_task(leader(database, "heir").run(stop, work))
        await work.running.wait()
        assert asyncio.get_running_loop().time() - began < 1.5 * 4 / 3 + 1.5
        stop.set()


@pytest.mark.slow
async def test_work_is_cancelled_when_the_lease_cannot_be_renewed(sqlite_ledger: Database) -> None:
    # case: B26
    held = leader(sqlite_ledger, "one", 4.5)
    stop, work = asyncio.Event(), Work()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(held.run(stop, work))
        await work.running.wait()
        began = asyncio.get_running_loop().time()
        async with sqlite_ledger.transaction():  # the database does not answer
            await work.ended.wait()
            assert asyncio.get_running_loop().time() - began < 5.2, "not at the end of the try after the lease's end"
            assert work.cancelled
            assert not held.leads
            stop.set()


async def test_a_piece_of_work_is_not_done_by_a_second_one(database: Database) -> None:
    # case: B26
    first, second = leader(database, "one", 30), leader(database, "two", 30)
    done: list[str] = []

    async def outer() -> None:
        with pytest.raises(AnotherLeads):
            await second.once(inner)
        done.append("outer")

    async def inner() -> None:
        done.append("inner")

    await first.once(outer)
    await second.once(inner)
    assert done == ["outer", "inner"]


async def test_failing_work_is_raised_and_the_role_is_given_back(sqlite_ledger: Database) -> None:
    # case: B26
    async def fail() -> None:
        raise ValueError("made up")

    with pytest.raises(ValueError, match="made up"):
        await leader(sqlite_ledger, "one", 30).once(fail)
    assert await leader(sqlite_ledger, "two", 30)._take()


async def test_an_old_leader_cannot_move_the_bookmark_back(database: Database) -> None:
    # case: B26, B10
    now = DrivenClock().now()
    async with database.transaction() as session:
        await sync_state.keep(session, "default", "events", {"at": 1}, token=5, now=now)
        await sync_state.keep(session, "default", "events", {"at": 2}, token=7, now=now)
    with pytest.raises(LeaseLost):
        async with database.transaction() as session:
            await sync_state.keep(session, "default", "events", {"at": 3}, token=6, now=now)
    async with database.reading() as session:
        assert await sync_state.load(session, "default", "events") == {"at": 2}
        assert await sync_state.load(session, "other", "events") is None
