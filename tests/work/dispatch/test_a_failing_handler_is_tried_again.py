"""A failing handler is tried again by its policy, and is dead after the last attempt; nobody else is harmed."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select

from consumer.broker import Broker
from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.handling import attempts, dead, runs
from consumer.ledger.handling.runs import ClaimedRun
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.tables import DeadLetterRow, RunRow
from consumer.plugin import Context, Event, Handler, Reject, RetryLater, declared, handles
from consumer.work.dispatch import dispatcher
from consumer.work.dispatch.result_writer import Result, conclude, store
from consumer.work.outcome import Outcome, Succeeded, failed
from tests.support.handling.live import Live
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid


# case: H3
@pytest.mark.parametrize("transactional", [True, False])
async def test_fails_twice_then_succeeds(database: Database, broker: Broker, transactional: bool) -> None:
    tries: list[int] = []

    @handles("order.paid", transactional=transactional, first_wait_s=0.02)
    async def flaky(event: Event, ctx: Context) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError("not yet")

    shop = Workshop(database, broker, [flaky])
    await shop.publish(order_paid(1))
    async with shop.working():
        await until_statuses(shop, ["succeeded"])
        # The first of a transactional one was its batch's.
        told = 2 if transactional else 3
        await eventually(lambda: shop.figure("consumer_work_run_seconds_count", handler="flaky") == told)
    # A transactional first attempt is made twice: with its batch, and again apart from it.
    assert [number for number in tries if number > 1] == [2, 3]
    async with database.reading() as session:
        kept = await attempts.of_event(session, "default", "evt_1")
    assert [(row.number, row.outcome) for row in kept] == [(1, "retrying"), (2, "retrying"), (3, "succeeded")]
    assert kept[0].fingerprint == kept[1].fingerprint
    assert kept[0].code_version


# case: R10
async def test_the_last_attempt_makes_it_dead_and_others_go_on(database: Database, broker: Broker) -> None:
    @handles("order.paid", attempts=2, first_wait_s=0.01)
    async def broken(event: Event, ctx: Context) -> None:
        raise ValueError("never")

    @handles("order.paid", attempts=2)
    async def fine(event: Event, ctx: Context) -> None:
        return None

    shop = Workshop(database, broker, [broken, fine])
    await shop.publish(order_paid(1), order_paid(2))
    async with shop.working():
        await until_statuses(shop, ["dead", "dead"], ".broken")
        await until_statuses(shop, ["succeeded", "succeeded"], ".fine")
    row = (await shop.runs("broken"))[0]
    assert row.attempts == 2
    assert row.reason == "2 attempts used: ValueError: never"


async def test_retry_later_costs_no_attempt_and_reject_is_dead_at_once(database: Database, broker: Broker) -> None:
    asked: list[int] = []

    @handles("order.paid", attempts=1)
    async def later(event: Event, ctx: Context) -> None:
        asked.append(ctx.attempt)
        if len(asked) < 4:
            raise RetryLater(0.01, "stock is being counted")

    @handles("order.paid", attempts=9)
    async def refuses(event: Event, ctx: Context) -> None:
        raise Reject("no such product")

    shop = Workshop(database, broker, [later, refuses])
    await shop.publish(order_paid(1))
    async with shop.working():
        await until_statuses(shop, ["succeeded"], ".later")
        await until_statuses(shop, ["dead"], ".refuses")
    assert asked == [1, 1, 1, 1]
    assert (await shop.runs("refuses"))[0].attempts == 1


# case: H4
async def test_whatever_a_handler_does_stays_its_own(database: Database, broker: Broker) -> None:
    """Hangs, ends the process, cancels itself, returns nonsense, writes nonsense: others run."""

    @handles("order.paid", attempts=1, timeout_s=0.05)
    async def hangs(event: Event, ctx: Context) -> None:
        await asyncio.Event().wait()

    @handles("order.paid", attempts=1, timeout_s=0.05, transactional=True)
    async def hangs_in_transaction(event: Event, ctx: Context) -> None:
        await asyncio.Event().wait()

    @handles("order.paid", attempts=1)
    async def exits(event: Event, ctx: Context) -> None:
        sys.exit(3)

    @handles("order.paid", attempts=1, transactional=True)
    async def exits_in_transaction(event: Event, ctx: Context) -> None:
        sys.exit(3)

    @handles("order.paid", attempts=1)
    async def cancels(event: Event, ctx: Context) -> None:
        raise asyncio.CancelledError

    @handles("order.paid", attempts=1)
    async def uses_the_session(event: Event, ctx: Context) -> None:
        await ctx.session.flush()

    @handles("order.paid", attempts=1)
    async def returns(event: Event, ctx: Context) -> Any:
        return "done"

    @handles("order.paid")
    async def fine(event: Event, ctx: Context) -> None:
        return None

    broken = [hangs, hangs_in_transaction, exits, exits_in_transaction, cancels, uses_the_session, returns]
    shop = Workshop(database, broker, [*broken, fine])
    await shop.publish(*[order_paid(number) for number in range(3)])
    async with shop.working():
        await until_statuses(shop, ["succeeded"] * 3, ".fine")
        for function in broken:
            await until_statuses(shop, ["dead"] * 3, function.__name__)
    codes = {row.handler.rsplit(".", 1)[-1]: row.code for row in await shop.runs()}
    assert codes["hangs"] == codes["hangs_in_transaction"] == "handler_timeout"
    assert codes["exits"] == codes["exits_in_transaction"] == codes["cancels"] == "handler_crashed"
    assert codes["uses_the_session"] == codes["returns"] == "handler_misuse"


async def until_statuses(shop: Workshop, wanted: list[str], handler: str = "") -> None:
    """Wait until the runs of the handler whose name ends so stand like this."""

    async def stands() -> bool:
        return await shop.statuses(handler) == wanted

    await eventually(stands, within_s=20, what=f"{handler} {wanted}")


# --- how an attempt ends ----------------------------------------------------------------------------------------


RUNS = RunRow.__table__


class Attempts:
    """A handler whose first attempts fail, and what it saw of each."""

    def __init__(self, *, transactional: bool, fails: int) -> None:
        self.seen: list[int] = []

        @handles("order.paid", name="test:tries", transactional=transactional, attempts=9, first_wait_s=1)
        async def tries(event: Event, ctx: Context) -> None:
            self.seen.append(ctx.attempt)
            if ctx.attempt <= fails:
                raise RuntimeError("not yet")

        found = declared(tries)
        assert found is not None
        self.handler: Handler = found


async def stored(database: Database) -> list[tuple[str, int, str | None, str | None]]:
    """Each run: its status, the attempts it has used, why, and who has it."""
    columns = (RUNS.c.status, RUNS.c.attempts, RUNS.c.code, RUNS.c.claimed_by)
    async with database.reading() as session:
        return [tuple(row) for row in await session.execute(select(*columns).order_by(RUNS.c.seq))]


@pytest.mark.parametrize("transactional", [True, False])
async def test_each_attempt_knows_its_number(
    sqlite_ledger: Database, transactional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: H2
    attempts, told = Attempts(transactional=transactional, fails=2), list[int]()
    monkeypatch.setattr(dispatcher, "tell", lambda _, __, *, attempt, **___: told.append(attempt))
    shop = Live(sqlite_ledger, {}, application="default", more=[attempts.handler])
    try:
        await shop.arrive(order_paid(1))
        await shop.pass_time(seconds=60)
        assert list(dict.fromkeys(attempts.seen)) == [1, 2, 3]
        assert told == ([2, 3] if transactional else [1, 2, 3]), "a projection's first is the batch's"
        assert await stored(sqlite_ledger) == [("succeeded", 3, None, None)]
    finally:
        await shop.close()


async def test_a_projections_run_that_the_ledger_did_not_take_is_due_when_its_claim_ends(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: H2, H9
    attempts = Attempts(transactional=True, fails=1)
    shop = Live(sqlite_ledger, {}, application="default", more=[attempts.handler])

    async def refuses(*_: Any, **__: Any) -> int:
        raise LedgerUnavailable

    try:
        await shop.arrive(order_paid(1))
        shop.clock.advance(60)
        with monkeypatch.context() as patch:
            patch.setattr(dispatcher, "store", refuses)
            assert await shop.make_up() == 1
        [(status, used, _, claimed_by)] = await stored(sqlite_ledger)
        assert (status, used, claimed_by) == ("retrying", 1, "dispatcher")
        shop.clock.advance(CLAIM_LEASE_S / 2)
        await shop.renew_claims()
        shop.clock.advance(CLAIM_LEASE_S / 2 + 1)
        assert await shop.make_up() == 1, "nobody renewed the claim"
        assert (await stored(sqlite_ledger))[0][0] == "succeeded"
    finally:
        await shop.close()


async def test_what_breaks_around_a_projection_is_its_runs_failure(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: H2
    attempts = Attempts(transactional=True, fails=1)
    shop = Live(sqlite_ledger, {}, application="default", more=[attempts.handler])

    async def breaks(*_: Any, **__: Any) -> int:
        raise ValueError("nobody has thought of this")

    try:
        await shop.arrive(order_paid(1))
        shop.clock.advance(60)
        with monkeypatch.context() as patch:
            patch.setattr(dispatcher, "store", breaks)
            assert await shop.make_up() == 1
        [(status, used, _, claimed_by)] = await stored(sqlite_ledger)
        assert (status, used, claimed_by) == ("retrying", 2, None)
        await shop.pass_time(seconds=60)
        assert [one[0] for one in await stored(sqlite_ledger)] == ["succeeded"]
    finally:
        await shop.close()


async def test_only_what_is_dead_is_buried(sqlite_ledger: Database) -> None:
    # case: H3
    @handles("order.paid", name="test:refuses", attempts=9, first_wait_s=1)
    async def refuses(event: Event, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        if event.id == "evt_2":
            raise Reject("never")

    found = declared(refuses)
    assert found is not None
    shop = Live(sqlite_ledger, {}, application="default", more=[found])
    try:
        await shop.arrive(*[order_paid(number) for number in (1, 2, 3)])
        await shop.make_up()
        assert await buried(sqlite_ledger) == []
        await shop.pass_time(seconds=30)
        assert await buried(sqlite_ledger) == ["evt_2"]
    finally:
        await shop.close()


async def buried(database: Database) -> list[str]:
    """The events of dead letters."""
    async with database.reading() as session:
        return list((await session.execute(select(DeadLetterRow.__table__.c.event_id))).scalars())


async def test_a_stop_gives_back_what_does_not_end_in_time(sqlite_ledger: Database) -> None:
    # case: H9
    begun = Counter[str]()

    @handles("order.paid", name="test:hangs", concurrency=2)
    async def hangs(event: Event, ctx: Context) -> None:
        begun[event.id] += 1
        await asyncio.sleep(60)

    found = declared(hangs)
    assert found is not None
    shop = Live(sqlite_ledger, {}, application="default", more=[found])
    stop = asyncio.Event()
    try:
        await shop.arrive(*[order_paid(number) for number in range(3)])
        running = asyncio.create_task(shop._dispatcher.run(stop, 0.01))
        await eventually(lambda: begun.total() == 2)
        stop.set()
        shop._dispatcher.wake()
        await asyncio.wait_for(running, 20)
        assert [one[3] for one in await stored(sqlite_ledger)] == [None] * 3
    finally:
        await shop.close()


# case: H3
async def test_an_attempt_of_which_nothing_can_be_concluded_is_a_failure_and_holds_no_place(
    sqlite_ledger: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    @handles("order.paid", transactional=False, attempts=1)
    async def ships(event: Event, ctx: Context) -> None:
        """Nothing fails here."""

    def broken(handler: Handler, run: ClaimedRun, event: Event, outcome: Outcome, **told: Any) -> Result:
        if isinstance(outcome, Succeeded):
            raise TypeError("it makes no result")
        return conclude(handler, run, event, outcome, **told)

    monkeypatch.setattr(dispatcher, "conclude", broken)
    shop = Workshop(sqlite_ledger, broker, [ships])
    await shop.publish(order_paid(1))
    async with shop.working():
        await until_statuses(shop, ["dead"])


async def test_a_failure_of_a_run_that_is_anothers_by_then_is_told_to_nobody(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: H9, O8
    told: list[Result] = []

    @handles("order.paid", name="test:ship", attempts=1)
    async def ship(event: Event, ctx: Context) -> None:
        """Nothing."""

    async def is_lost(*_: object) -> Outcome:
        live.clock.advance(CLAIM_LEASE_S + 1)
        await taken_over(database, live, "another")
        return failed(RuntimeError("it has gone already"))

    found = declared(ship)
    assert found is not None
    live = Live(database, {}, application="default", more=[found])
    monkeypatch.setattr(live._executor, "effect", is_lost)
    live._dispatcher._observe = told.append
    try:
        await live.arrive(order_paid(1))
        assert await live.make_up() == 1
        [(status, used, _, claimed_by)] = await stored(database)
        assert (status, used, claimed_by, told) == ("retrying", 0, "another", [])
    finally:
        await live.close()


async def test_a_success_after_the_run_died_elsewhere_settles_its_letter_and_says_what_happened(
    database: Database,
) -> None:
    # case: F30, R10
    refuses = True

    @handles("order.paid", name="test:ship")
    async def ship(event: Event, ctx: Context) -> None:
        if refuses:
            raise Reject("409 already shipped")

    found = declared(ship)
    assert found is not None
    live = Live(database, {}, application="default", more=[found])
    try:
        await live.arrive(order_paid(1, "A-1"), order_paid(2, "A-1"))
        began, [slow] = live.clock.now(), await taken_over(database, live, "slow")
        live.clock.advance(CLAIM_LEASE_S + 1)
        assert await live.make_up() == 1
        assert await live.unfinished() == [("evt_2", "test:ship", "parked")]
        async with database.transaction() as session:
            late = conclude(found, slow, order_paid(1, "A-1"), Succeeded(), worker="slow", started_at=began,
                            now=live.clock.now())  # fmt: skip
            done = await store(session, [late], worker="slow", now=live.clock.now())
        assert (done.let_go, done.revived) == (1, frozenset({slow.id}))
        async with database.reading() as session:
            kept = await attempts.of_event(session, "default", "evt_1")
            assert await dead.search(session, dead.DeadFilter()) == []
        assert [(one.outcome, one.worker) for one in kept] == [("dead", "dispatcher"), ("succeeded", "slow")]
        assert (kept[1].started_at, kept[1].finished_at) == (began, live.clock.now())
        refuses = False
        assert await live.make_up() == 1
        assert await live.unfinished() == []
    finally:
        await live.close()


async def taken_over(database: Database, live: Live, worker: str) -> Sequence[ClaimedRun]:
    """What is due is claimed by another worker."""
    async with database.transaction() as session:
        return await runs.claim(session, handler="test:ship", worker=worker, limit=1, now=live.clock.now(),
                                lease_s=CLAIM_LEASE_S)  # fmt: skip
