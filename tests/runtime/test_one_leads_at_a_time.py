"""Leader: one at a time, the next one within a bound, nobody writes with an old token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Table, update
from structlog.testing import capture_logs

from consumer.clock import DrivenClock, SystemClock
from consumer.errors import AnotherLeads, LeaseLost, LedgerDiskFull
from consumer.ledger import Database, leases
from consumer.ledger.reading import sync_state
from consumer.ledger.tables import LeaseRow
from consumer.runtime import leader as leading
from consumer.runtime.leader import Leader
from tests.support.clocks import WrongClock
from tests.support.ports import eventually
from tests.sync.conftest import SteppedClock
from tests.sync.test_outages_heal_by_themselves import FlakyDatabase

LEASES: Table = LeaseRow.__table__


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
async def test_work_is_cancelled_before_a_lease_that_cannot_be_renewed_runs_out(sqlite_ledger: Database) -> None:
    # case: B26
    lease_s = 9.0
    held = leader(sqlite_ledger, "one", lease_s)
    stop, work = asyncio.Event(), Work()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(held.run(stop, work))
        await work.running.wait()
        began = asyncio.get_running_loop().time()
        async with sqlite_ledger.transaction():  # the database does not answer
            await work.ended.wait()
            assert asyncio.get_running_loop().time() - began < lease_s
            assert work.cancelled
            assert not held.leads
            stop.set()


@pytest.mark.slow
@pytest.mark.parametrize("is_taken", [False, True])
async def test_work_that_holds_the_file_loses_its_lease_to_another_alone(
    sqlite_ledger: Database, *, is_taken: bool
) -> None:
    # case: B26
    """A rebuild is one transaction: while it goes on nobody can take the lease, and nobody can renew it."""
    held = Leader(sqlite_ledger, role="archive", holder="one", clock=SystemClock(), lease_s=1.5, holds_file=True)

    async def work() -> str:
        async with sqlite_ledger.transaction() as session:
            await eventually(lambda: not held.leads, within_s=10, every_s=0.05)
            if is_taken:
                await session.execute(
                    update(LEASES).values(holder="two", until=SystemClock().now() + timedelta(seconds=10))
                )
        if is_taken:
            await asyncio.Event().wait()
        return "done"

    async with asyncio.timeout(20):
        if is_taken:
            with pytest.raises(LeaseLost):
                await held.once(work)
        else:
            assert await held.once(work) == "done"


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


class Watched(SteppedClock):
    """A clock whose sleepers do not wait; `seen` is told each time they slept until."""

    def __init__(self, seen: Callable[[float], None] = lambda _: None) -> None:
        super().__init__()
        self._seen = seen

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        self._seen(self.monotonic())


def stepped(database: Database, clock: SteppedClock) -> Leader:
    """One that renews its lease of 30 seconds each ten."""
    return Leader(database, role="sync/default", holder="stepped", clock=clock, lease_s=30)


async def lead_is_taken(database: Database) -> None:
    """As after a SIGSTOP for longer than the lease."""
    async with database.transaction() as session:
        await session.execute(update(LEASES).values(holder="another", token=LEASES.c.token + 1))


@pytest.mark.parametrize(("grace_s", "cancelled"), [(0.0, False), (-1.0, True)])
async def test_at_a_stop_work_is_told_to_end_and_cut_a_second_after_its_grace(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch, grace_s: float, cancelled: bool
) -> None:
    # case: B26
    monkeypatch.setattr(leading, "STOP_GRACE_S", grace_s)
    stop, work = asyncio.Event(), Work()

    async def ends_in_turns(ending: asyncio.Event) -> None:
        turns = asyncio.Event()
        tidying = asyncio.create_task(work(turns))
        try:
            stop.set()
            await ending.wait()
            for _ in range(10):
                await asyncio.sleep(0)
            turns.set()
            await tidying
        finally:
            tidying.cancel()
            await asyncio.gather(tidying, return_exceptions=True)

    async with asyncio.timeout(10):
        await stepped(sqlite_ledger, SteppedClock()).run(stop, ends_in_turns)
    assert (work.ended.is_set(), work.cancelled) == (True, cancelled)
    assert await leader(sqlite_ledger, "two", 30)._take(), "handed over at once"


async def test_work_that_fails_is_begun_anew_after_a_wait_and_work_that_is_done_at_once(
    sqlite_ledger: Database,
) -> None:
    # case: B26
    stop, clock, began = asyncio.Event(), SteppedClock(), list[float]()

    async def work(_: asyncio.Event) -> None:
        began.append(clock.monotonic())
        if len(began) == 1:
            raise ValueError("made up")
        if len(began) == 3:
            stop.set()

    async with asyncio.timeout(10):
        with capture_logs() as lines:
            await stepped(sqlite_ledger, clock).run(stop, work)
    # The time until it would be renewed passes on this clock in any case.
    assert began == [0, 20, 30]
    assert [line["event"] for line in lines] == ["leads", "leading_failed", "leads", "leads"]


async def test_work_that_stands_aside_leaves_another_the_time_to_take_the_role(sqlite_ledger: Database) -> None:
    # case: B26
    stop, clock, began = asyncio.Event(), SteppedClock(), list[float]()
    held = stepped(sqlite_ledger, clock)

    async def work(_: asyncio.Event) -> None:
        began.append(clock.monotonic())
        if len(began) == 1:
            held.stand_aside()
        if len(began) == 3:
            stop.set()

    async with asyncio.timeout(10):
        await held.run(stop, work)
    assert began == [0, 40, 50], "a whole lease, once; the time until it would be renewed passes in any case"


async def test_who_does_not_lead_tries_again_when_a_leader_would_renew(sqlite_ledger: Database) -> None:
    # case: B26
    stop, work, tried = asyncio.Event(), Work(), list[float]()

    def seen(now_s: float) -> None:
        tried.append(now_s)
        if now_s >= 30:
            stop.set()

    assert await leader(sqlite_ledger, "another", 30)._take()
    async with asyncio.timeout(10):
        await stepped(sqlite_ledger, Watched(seen)).run(stop, work)
    assert tried == [10, 20, 30]
    assert not work.ended.is_set()


class Unanswering(FlakyDatabase):
    """Counts how often it was asked while it was down."""

    asked = 0

    def _refuse(self) -> None:
        self.asked += self.down
        super()._refuse()


async def test_work_ends_with_the_lease_that_cannot_be_renewed(sqlite_ledger: Database, tmp_path: Path) -> None:
    # case: B26
    ledger, clock, stop = Unanswering(f"sqlite+aiosqlite:///{tmp_path}/ledger.db"), SteppedClock(), asyncio.Event()
    held, ended = stepped(ledger, clock), list[tuple[float, bool]]()

    async def work(_: asyncio.Event) -> None:
        ledger.down = True
        try:
            await asyncio.Event().wait()
        finally:
            ended.append((clock.monotonic(), held.leads))
            stop.set()

    async with asyncio.timeout(10):
        with capture_logs() as lines:
            await held.run(stop, work)
    assert ended == [(27, False)], "nine tenths of the lease, not the end of the next try"
    assert ledger.asked == 3, "after 10 and 20 seconds, and to give it back"
    assert [line["event"] for line in lines] == ["leads", "stage_held_up", "no_longer_leads"]
    await ledger.stop()


async def test_a_lease_that_is_renewed_in_time_after_all_is_held_on(sqlite_ledger: Database, tmp_path: Path) -> None:
    # case: B26
    ledger, stop, work = Unanswering(f"sqlite+aiosqlite:///{tmp_path}/ledger.db"), asyncio.Event(), Work()

    def seen(now_s: float) -> None:
        ledger.down = now_s < 20
        if now_s >= 100:
            stop.set()

    held = stepped(ledger, Watched(seen))
    async with asyncio.timeout(10):
        with capture_logs() as lines:
            await held.run(stop, work)
    assert (work.ended.is_set(), work.cancelled, ledger.asked) == (True, False, 1)
    assert [line["event"] for line in lines] == ["leads", "stage_held_up", "stage_held_up_over"]
    await ledger.stop()


async def test_work_is_cut_when_another_has_the_lease(sqlite_ledger: Database) -> None:
    # case: B26
    stop, work, held = asyncio.Event(), Work(), stepped(sqlite_ledger, SteppedClock())

    async def robbed(ending: asyncio.Event) -> None:
        await lead_is_taken(sqlite_ledger)
        try:
            await work(ending)
        finally:
            stop.set()

    async with asyncio.timeout(10):
        await held.run(stop, robbed)
    assert (work.cancelled, held.leads) == (True, False)
    with pytest.raises(LeaseLost):
        _ = held.token


async def test_a_piece_of_work_gives_its_result_or_tells_that_the_role_was_lost(sqlite_ledger: Database) -> None:
    # case: B26
    async def seven() -> int:
        return 7

    async def robbed() -> None:
        await lead_is_taken(sqlite_ledger)
        await asyncio.Event().wait()

    assert await stepped(sqlite_ledger, SteppedClock()).once(seven) == 7
    async with asyncio.timeout(10):
        with pytest.raises(LeaseLost):
            await stepped(sqlite_ledger, SteppedClock()).once(robbed)


async def test_a_ledger_that_cannot_tell_is_not_taken_for_another_that_leads(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: B26
    async def full(*_: object, **__: object) -> None:
        raise LedgerDiskFull

    async def never() -> None:
        raise AssertionError

    monkeypatch.setattr(leases, "acquire", full)
    with pytest.raises(LedgerDiskFull):
        await leader(sqlite_ledger, "one").once(never)
