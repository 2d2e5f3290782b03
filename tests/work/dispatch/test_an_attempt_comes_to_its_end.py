"""However an attempt ends, its run is stored, let go or given back: nothing stays claimed that nobody works on."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import select

from consumer.errors import LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.tables import DeadLetterRow, RunRow
from consumer.plugin import Context, Event, Handler, Reject, declared, handles
from consumer.work.dispatch import dispatcher
from tests.support.handling.live import Live
from tests.support.ports import eventually
from tests.work.workshop import order_paid

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
