"""A quick effect handler's runs are claimed in large groups, and still no more of them run at once; what may not start
is given back to whoever has room."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from consumer.broker import Broker
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.handling import events, handlers, queue, runs
from consumer.ledger.handling.handlers import ALL, Paused
from consumer.ledger.handling.runs import ClaimedRun
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.tables import RunRow
from consumer.plugin import Context, Event, Handler, declared, handles
from consumer.work.dispatch import ahead
from consumer.work.dispatch.ahead import AHEAD_MAX, PATIENCE_S, SURE_S, Ahead
from consumer.work.dispatch.dispatcher import QUIET_S, RETRY_S
from consumer.work.dispatch.patience import PATIENT_S
from consumer.work.execution.claimed import Claimed
from consumer.work.rounds.housekeeping import HOUSEKEEPING_S, RENEW_EVERY
from tests.support.handling.live import Live
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

ORDERS = 300
RUNS = RunRow.__table__


def handler(**options: Any) -> Handler:
    """A handler with these options."""

    @handles("order.paid", name="test:any", **options)
    async def anything(event: Event, ctx: Context) -> None:
        """Nothing."""

    found = declared(anything)
    assert found is not None
    return found


def run(number: int) -> ClaimedRun:
    """A claimed run of `test:any`."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return ClaimedRun(application="a", event_id=f"evt_{number}", handler="test:any", seq=number, key=f"order:{number}",
                      attempts=0, plan=None, created_at=at, due_at=at)  # fmt: skip


def claimed(number: int) -> Claimed:
    """That run, claimed at second 10."""
    return Claimed(run=run(number), event=order_paid(number), at_s=10.0)


async def test_a_backlog_is_claimed_in_large_groups(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[int] = []
    claim = runs.claim

    async def counted(*given: Any, **options: Any) -> Any:
        found = await claim(*given, **options)
        claims.append(len(found))
        return found

    monkeypatch.setattr(runs, "claim", counted)
    monkeypatch.setattr(ahead, "SHARE", 1.0)  # however slow the machine is: what was done in the last second
    at_once, most = Counter[str](), 0

    @handles("order.paid", name="test:counts", concurrency=4)
    async def counts(event: Event, ctx: Context) -> None:
        nonlocal most
        at_once["now"] += 1
        most = max(most, at_once["now"])
        await asyncio.sleep(0.001)
        at_once["now"] -= 1

    shop = Workshop(database, broker, [counts])
    await shop.publish(*[order_paid(number) for number in range(ORDERS)])
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(ORDERS), within_s=60)
    assert most <= 4
    assert len([one for one in claims if one]) < ORDERS / 4 / 2, claims  # by fours it would be twice as many at least
    assert max(claims) > 2 * 4, claims


async def test_who_is_paused_gives_back_what_waits(database: Database, broker: Broker) -> None:
    """And nothing of it starts any more, until the handler is resumed."""
    gate, begun = threading.Event(), Counter[str]()

    @handles("order.paid", name="test:gated", concurrency=2)
    async def gated(event: Event, ctx: Context) -> None:
        begun["all"] += 1
        if begun["all"] > 20:
            await asyncio.to_thread(gate.wait, 30)

    shop = Workshop(database, broker, [gated])
    await shop.publish(*[order_paid(number) for number in range(200)])
    async with shop.working():
        await eventually(lambda: begun["all"] == 22)
        async with database.transaction() as session:
            await handlers.pause(session, "test:gated", by="test", reason="looks odd", now=datetime.now(UTC))
        looks = Counter[str]()

        async def given_back() -> bool:
            """Ten looks in a row: a claim that was under way when the pause was stored comes after it."""
            looks["few"] = looks["few"] + 1 if await _claimed(database, at_most=2) else 0
            return looks["few"] == 10

        await eventually(given_back)
        gate.set()
        await eventually(lambda: _claimed(database, at_most=0))
        assert begun["all"] == 22
        async with database.transaction() as session:
            await handlers.resume(session, "test:gated")
        await eventually(lambda: shop.all_succeeded(200), within_s=60)
    assert begun["all"] == 200


@pytest.mark.slow
async def test_what_waits_behind_hanging_runs_is_another_workers(database: Database, broker: Broker) -> None:
    hanging, begun = Counter[str](), Counter[str]()

    @handles("order.paid", name="test:hangs", concurrency=2, timeout_s=60)
    async def hangs(event: Event, ctx: Context) -> None:
        begun["all"] += 1
        if 20 < begun["all"] <= 22:
            hanging["now"] += 1
            await asyncio.sleep(60)

    shop = Workshop(database, broker, [hangs])
    await shop.publish(*[order_paid(number) for number in range(200)])
    async with shop.working():
        await eventually(lambda: hanging["now"] == 2)
        async with shop.working():
            await eventually(lambda: _succeeded(database, 198), within_s=PATIENCE_S + 20)


async def test_who_was_stopped_for_a_while_starts_nothing_of_it(database: Database) -> None:
    """Another worker has it by then."""
    gate, begun = threading.Event(), Counter[str]()

    @handles("order.paid", name="test:stops", concurrency=1)
    async def stops(event: Event, ctx: Context) -> None:
        begun[event.id] += 1
        if begun.total() == 30:
            await asyncio.to_thread(gate.wait, 30)

    found = declared(stops)
    assert found is not None
    shop = Live(database, {}, application="default", more=[found])
    try:
        await shop.arrive(*[order_paid(number) for number in range(40)])
        working = asyncio.create_task(_until(shop, lambda: begun.total() >= 30))
        await eventually(lambda: begun.total() == 30)
        async with database.transaction() as session:
            theirs = {"claimed_by": "another", "claimed_until": shop.clock.now() + timedelta(seconds=60)}
            waits = RUNS.c.status == "retrying"
            held = await session.scalar(select(func.count()).where(waits, RUNS.c.claimed_by.is_not(None))) or 0
            await session.execute(update(RUNS).where(waits).values(theirs))
        shop.clock.advance(20)
        gate.set()
        await working
        assert begun.total() == 30
        assert held > 1, "else nothing was ahead"
        await shop.pass_time(seconds=120)
        assert await shop.unfinished() == []
        assert len(begun) == 40
        assert begun.total() <= 41, "the one that was at work may be done twice"
    finally:
        await shop.close()


@pytest.mark.parametrize("ledger", ["answers", "is away"])
async def test_who_stood_still_lets_others_store_first_what_they_did_meanwhile(
    ledger: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could not renew their claims either: the whole machine stood still, or the ledger was away for all."""
    begun = Counter[str]()

    @handles("order.paid", name="test:counts")
    async def counts(event: Event, ctx: Context) -> None:
        begun[event.id] += 1

    async def fails(*_: Any) -> None:
        raise LedgerUnavailable

    found = declared(counts)
    assert found is not None
    shop = Live(database, {}, application="default", more=[found])
    dispatcher = shop._dispatcher
    dispatcher._patience._patient_s = PATIENT_S
    try:
        await shop.arrive(order_paid(1))
        async with database.transaction() as session:
            theirs = {"claimed_by": "another", "claimed_until": shop.clock.now() + timedelta(seconds=CLAIM_LEASE_S)}
            await session.execute(update(RUNS).values(theirs))
        await dispatcher.once()
        if ledger == "answers":
            shop.clock.advance(CLAIM_LEASE_S + 1)
        else:
            shop.clock.advance(PATIENT_S)
            await dispatcher.once()
            shop.clock.advance(PATIENT_S)
            with monkeypatch.context() as patch:
                patch.setattr(queue, "next_due", fails)
                trying = asyncio.create_task(dispatcher.once())
                await eventually(lambda: shop._elsewhere.sleepers == 1)
                shop._elsewhere.advance(RETRY_S)
                await trying
            shop.clock.advance(CLAIM_LEASE_S + 1 - 2 * PATIENT_S)
        for _ in range(3):
            assert await dispatcher.once() == 0
            shop.clock.advance(PATIENT_S / 3 + 0.01)
        assert await dispatcher.once() == 1, "nobody has renewed it: it is nobody's"
        assert begun == {"evt_1": 1}
    finally:
        await shop.close()


async def test_who_is_told_a_later_time_first_takes_nothing_from_the_living(database: Database) -> None:
    """A database's clock is set ahead by an hour: each worker hears of it with its next heartbeat."""
    begun = Counter[str]()

    @handles("order.paid", name="test:counts")
    async def counts(event: Event, ctx: Context) -> None:
        begun[event.id] += 1

    found = declared(counts)
    assert found is not None
    shop = Live(database, {}, application="default", more=[found])
    dispatcher = shop._dispatcher

    async def renewed_by_another(at: datetime) -> None:
        async with database.transaction() as session:
            theirs = {"claimed_by": "another", "claimed_until": at + timedelta(seconds=CLAIM_LEASE_S)}
            await session.execute(update(RUNS).values(theirs))

    try:
        await shop.arrive(order_paid(1))
        await renewed_by_another(before := shop.clock.now())
        assert await dispatcher.once() == 0
        shop.clock._now += timedelta(hours=1)
        assert await dispatcher.once() == 0, "the other has not heard of it, and is at work"
        shop.clock.advance(4)
        await renewed_by_another(before + timedelta(seconds=4))
        assert await dispatcher.once() == 0
        shop.clock.advance(CLAIM_LEASE_S)
        assert await dispatcher.once() == 1, "who still has not renewed it is dead"
    finally:
        await shop.close()


async def test_a_worker_waits_for_longer_than_others_need_to_renew(database: Database, broker: Broker) -> None:
    assert Workshop(database, broker, []).worker()._dispatcher._patience._patient_s == PATIENT_S
    assert PATIENT_S > RENEW_EVERY * HOUSEKEEPING_S
    assert PATIENT_S > QUIET_S, "who is idle looks more often"


async def test_what_could_not_be_given_back_is_due_when_its_claim_ends(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody keeps it claimed who does not work on it."""
    begun = Counter[str]()

    @handles("order.paid", name="test:fails", concurrency=1, attempts=50, first_wait_s=1)
    async def fails(event: Event, ctx: Context) -> None:
        begun[event.id] += 1
        if begun.total() == 30:
            raise RuntimeError("once")

    async def refuses(*_: Any, **__: Any) -> None:
        raise LedgerUnavailable

    found = declared(fails)
    assert found is not None
    shop = Live(database, {}, application="default", more=[found])
    try:
        await shop.arrive(*[order_paid(number) for number in range(40)])
        await _until(shop, lambda: begun.total() >= 30)
        async with database.reading() as session:
            held = await session.scalar(select(func.count()).where(RUNS.c.claimed_by.is_not(None))) or 0
        assert held > 1, "else nothing was ahead"
        with monkeypatch.context() as patch:
            patch.setattr(runs, "give_back", refuses)
            with pytest.raises(LedgerUnavailable):
                await shop.renew_claims()
        await shop.renew_claims()  # by a ledger that is back
        await shop.pass_time(seconds=CLAIM_LEASE_S + 30)
        assert await shop.unfinished() == []
    finally:
        await shop.close()


async def test_a_claim_that_was_under_way_while_others_were_renewed(
    database: Database,
) -> None:
    one = handler()
    shop = Live(database, {}, application="default", more=[one])
    try:
        found, begun_s = shop._dispatcher, shop.clock.monotonic()
        found.paused = Paused(frozenset({(one.name, ALL)}))
        found._renewed_s = begun_s + 5
        await shop.arrive(order_paid(1))
        async with database.transaction() as session:
            mine = await runs.claim(session, handler=one.name, worker=found._worker, limit=1, now=shop.clock.now(),
                                    lease_s=CLAIM_LEASE_S)  # fmt: skip
        # its commit took longer than that
        found.take([Claimed(run=run, event=order_paid(1), at_s=begun_s) for run in mine])
        shop.clock.advance(SURE_S + 1)
        assert found._may_be_lost(one.name)
        await found.renew_claims()
        assert not found._may_be_lost(one.name)
    finally:
        await shop.close()


async def test_what_is_being_given_back_is_not_begun(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was stopped for a while gives back what may be another's, and looks for work beside that: what it
    claims anew just then must not lose its claim to the former giving back, while its handler is at it."""
    begun, gate = Counter[str](), asyncio.Event()

    @handles("order.paid", name="test:slow")
    async def slow(event: Event, ctx: Context) -> None:
        begun[event.id] += 1
        await gate.wait()

    found = declared(slow)
    assert found is not None
    shop = Live(database, {}, application="default", more=[found])
    late = asyncio.Event()

    class Late:
        """The ledger, whose first transaction comes late."""

        dialect = database.dialect
        reading = database.reading

        @asynccontextmanager
        async def transaction(self) -> AsyncIterator[Any]:
            monkeypatch.setattr(it, "_database", database)
            await late.wait()
            async with database.transaction() as session:
                yield session

    it = shop._dispatcher
    try:
        it.paused = Paused(frozenset({(found.name, ALL)}))
        await shop.arrive(order_paid(1))
        async with database.transaction() as session:
            mine = await runs.claim(session, handler=found.name, worker=it._worker, limit=1, now=shop.clock.now(),
                                    lease_s=CLAIM_LEASE_S)  # fmt: skip
        it.take([Claimed(run=one, event=order_paid(1), at_s=shop.clock.monotonic()) for one in mine])
        shop.clock.advance(CLAIM_LEASE_S + 1)
        monkeypatch.setattr(it, "_database", Late())
        giving_back = asyncio.create_task(it.renew_claims())
        await eventually(lambda: it._database is database)
        it.paused = Paused()
        await it._claim()
        late.set()
        await giving_back
        async with database.transaction() as session:
            others = await runs.claim(session, handler=found.name, worker="another", limit=1, now=shop.clock.now(),
                                      lease_s=CLAIM_LEASE_S)  # fmt: skip
        assert begun.total() + len(others) == 1, "two would be at it"
    finally:
        gate.set()
        await shop.close()


# case: H9
async def test_a_pause_that_is_heard_while_a_claim_is_under_way_holds(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim looked before that: what it took is given back, and not begun."""
    begun = Counter[str]()

    @handles("order.paid", name="test:ship", concurrency=2)
    async def ship(event: Event, ctx: Context) -> None:
        begun[event.id] += 1

    found = declared(ship)
    assert found is not None
    shop = Live(database, {}, application="default", more=[found])
    it, load = shop._dispatcher, events.load
    heard = Paused(frozenset({(found.name, "default")}))

    async def heard_meanwhile(*given: Any) -> Any:
        it.paused = heard
        return await load(*given)

    try:
        it.paused = Paused(frozenset({("test:other", "default")}))
        for number in range(1, 5):
            await shop.arrive(order_paid(number))
        monkeypatch.setattr(events, "load", heard_meanwhile)
        await it._claim()
        assert (it.paused, begun) == (heard, Counter())
        await it.renew_claims()
        assert await _claimed(database, at_most=0)
    finally:
        await shop.close()


async def _until(shop: Live, is_enough: Callable[[], bool]) -> None:
    while not is_enough():
        await shop.make_up()


async def _claimed(database: Database, *, at_most: int) -> bool:
    async with database.reading() as session:
        held = await session.execute(select(func.count()).where(RUNS.c.claimed_by.is_not(None)))
        return int(held.scalar_one()) <= at_most


async def _succeeded(database: Database, wanted: int) -> bool:
    async with database.reading() as session:
        done = await session.execute(select(func.count()).where(RUNS.c.status == "succeeded"))
        return int(done.scalar_one()) >= wanted


# --- how many -----------------------------------------------------------------------------------------------------


def after(ended: int, *, within_s: float = 1.0) -> Ahead:
    """So many attempts of `test:any` ended well, the last of them at second 10."""
    ahead = Ahead()
    for number in range(ended):
        ahead.succeeded("test:any", 10.0 - within_s * (ended - 1 - number) / ended)
    return ahead


def test_one_that_is_new_has_none_and_one_that_is_quick_many() -> None:
    assert after(0).wanted(handler(), 10.0, 0) == 0
    assert after(5000).wanted(handler(), 10.0, 0) == AHEAD_MAX


def test_a_quarter_of_what_ended_within_a_second_waits() -> None:
    assert after(100).wanted(handler(), 10.0, 0) == 25
    assert after(100, within_s=2.0).wanted(handler(), 10.0, 0) == 12
    assert after(3).wanted(handler(), 10.0, 0) == 0
    assert after(100).wanted(handler(), 11.5, 0) == 0, "long ago"


def test_what_waits_to_be_stored_counts_with_them() -> None:
    assert after(100).wanted(handler(), 10.0, 5) == 20
    assert after(100).wanted(handler(), 10.0, 60) == 0


def test_no_more_are_wanted_before_half_of_them_are_gone() -> None:
    ahead, one = after(100), handler()
    for number in range(13):
        ahead.put(claimed(number))
    assert ahead.wanted(one, 10.0, 0) == 0
    assert [ahead.pop(one.name, 10.0).run.seq for _ in range(2)] == [0, 1]
    assert ahead.wanted(one, 10.0, 0) == 14


def test_what_cannot_start_is_stuck_and_then_none_are_wanted() -> None:
    ahead, one = after(100), handler()
    ahead.put(claimed(1))
    assert not ahead.is_stuck(one.name, 10.0 + PATIENCE_S)
    assert ahead.is_stuck(one.name, 10.1 + PATIENCE_S)
    assert [gone.seq for gone in ahead.clear(one.name)] == [1]
    assert (ahead.wanted(one, 10.0, 0), ahead.count(one.name), ahead.handlers()) == (0, 0, [])


def test_it_is_stuck_a_while_after_the_last_that_started() -> None:
    ahead, one = Ahead(), handler()
    for number in range(2):
        ahead.put(claimed(number))
    ahead.pop(one.name, 15.0)
    assert not ahead.is_stuck(one.name, 15.0 + PATIENCE_S)
    assert ahead.is_stuck(one.name, 15.1 + PATIENCE_S)


def test_all_handlers_share_what_may_wait() -> None:
    ahead = after(5000)
    for number in range(AHEAD_MAX - 6):
        ahead.put(replace(claimed(number), run=replace(run(number), handler="test:another")))
    assert ahead.wanted(handler(), 10.0, 0) == 0, "six are no half of what it wants"


def test_one_of_which_none_waits_is_not_stuck() -> None:
    ahead, one = Ahead(), handler()
    ahead.put(claimed(1))
    ahead.pop(one.name, 10.0)
    assert not ahead.is_stuck(one.name, 11.0 + PATIENCE_S)


def test_a_claim_that_nobody_renewed_may_be_lost() -> None:
    ahead, one = Ahead(), handler()
    ahead.put(claimed(1))
    never = float("-inf")
    assert not ahead.may_be_lost(one.name, 10.0 + SURE_S, never)
    assert ahead.may_be_lost(one.name, 10.1 + SURE_S, never)
    assert not ahead.may_be_lost(one.name, 10.1 + SURE_S, 11.0)
    assert not ahead.may_be_lost("another", 100.0, never)
    assert SURE_S < CLAIM_LEASE_S


def test_one_that_fails_has_none_until_it_succeeds() -> None:
    ahead, one = after(99), handler()
    ahead.failed(one.name)
    assert (ahead.is_failing(one.name), ahead.wanted(one, 10.0, 0)) == (True, 0)
    ahead.succeeded(one.name, 10.0)
    assert (ahead.is_failing(one.name), ahead.wanted(one, 10.0, 0)) == (False, 25)


def test_a_projection_has_none() -> None:
    assert after(100).wanted(handler(transactional=True), 10.0, 0) == 0
