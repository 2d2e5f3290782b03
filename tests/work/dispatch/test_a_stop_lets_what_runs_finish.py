"""What runs when a worker stops is let finish and stored, and nothing else is waited for; what waits for one to finish
waits for no clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

import pytest
from structlog.testing import capture_logs

from consumer.broker import Broker, Record
from consumer.broker.embedded.member import EmbeddedSubscription
from consumer.errors import BrokerUnavailable, LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.plugin import Context, Event, handles
from consumer.work.dispatch import dispatcher
from consumer.work.ingest import claiming
from consumer.work.rounds import housekeeping, poll_loop
from consumer.work.worker import WorkerConfig
from tests.support.ports import eventually
from tests.work.workshop import TOPIC, Workshop, order_paid


async def test_what_runs_at_a_stop_is_let_finish_and_stored(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "QUIET_S", 0.01)  # so that the stop is seen before the handler ends
    monkeypatch.setattr(dispatcher, "IDLE_S", 0.01)
    began, may_end, ended = asyncio.Event(), asyncio.Event(), list[str]()

    @handles("order.paid", name="test:slow")
    async def slow(event: Event, ctx: Context) -> None:
        began.set()
        await may_end.wait()
        ended.append(event.id)

    shop = Workshop(database, broker, [slow])
    await shop.publish(order_paid(1))
    stop = asyncio.Event()
    task = asyncio.create_task(shop.worker().run(stop))
    async with asyncio.timeout(120):
        await began.wait()
        stop.set()
        await asyncio.wait({task}, timeout=0.5)
        assert not task.done(), "it waits"
        may_end.set()
        await task
    [run] = await shop.runs()
    assert (ended, run.status, run.attempts) == (["evt_1"], "succeeded", 1)


async def test_a_stop_waits_for_no_record(database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: O8
    monkeypatch.setattr(poll_loop, "POLL_S", 600.0)

    @handles("order.paid", name="test:any")
    async def taken(event: Event, ctx: Context) -> None: ...

    shop = Workshop(database, broker, [taken])
    async with shop.working() as working:  # and stops within half a minute
        await eventually(lambda: working.polls, within_s=60)
        await shop.publish(order_paid(1))
        await eventually(lambda: shop.all_succeeded(1), within_s=60)
    async with shop.working() as working:
        await shop.publish(order_paid(2))
        await eventually(lambda: shop.all_succeeded(2), within_s=60)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_stop_waits_for_no_next_try_and_takes_itself_for_no_recovery(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: O8
    polls = 0

    async def away(*_: object) -> Sequence[Record]:
        nonlocal polls
        polls += 1
        if polls == 2:
            monkeypatch.setattr(poll_loop, "RETRY_MOST_S", 0.01)
        if polls == 4:
            await asyncio.Event().wait()
        raise BrokerUnavailable("away")

    def at(wanted: int) -> bool:
        return polls == wanted

    monkeypatch.setattr(EmbeddedSubscription, "poll", away)
    monkeypatch.setattr(poll_loop, "RETRY_MOST_S", 600.0)
    shop = Workshop(database, broker, [])
    with capture_logs() as said:
        for wanted in (1, 4):  # it rests; it polls
            async with shop.working() as working:
                await eventually(partial(at, wanted), within_s=60)
        with pytest.raises(BrokerUnavailable):
            working.check()
    assert [line["event"] for line in said if "poll_failed" in line["event"]] == ["poll_failed", "poll_failed"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_stop_waits_for_no_ledger_to_come(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: O8
    tried = asyncio.Event()

    async def away(*_: object) -> None:
        tried.set()
        raise LedgerUnavailable("away")

    monkeypatch.setattr(handlers, "register", away)
    monkeypatch.setattr(housekeeping, "RETRY_S", 600.0)
    async with Workshop(database, broker, []).working() as working:
        await asyncio.wait_for(tried.wait(), 60)
    assert not working.polls


async def test_the_next_of_a_lane_begins_when_the_one_before_it_is_stored(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IDLE_S", "QUIET_S"):
        monkeypatch.setattr(dispatcher, name, 600.0)  # nobody looks by the clock
    seen: list[str] = []

    @handles("order.paid", name="test:lane")
    async def lane(event: Event, ctx: Context) -> None:
        seen.append(event.id)

    shop = Workshop(database, broker, [lane])
    await shop.publish(*[order_paid(number, "A-1") for number in range(5)])
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(5), within_s=60)
    assert seen == [f"evt_{number}" for number in range(5)]


# case: O8
async def test_what_runs_longer_than_a_claim_at_a_stop_is_called_by_nobody_else(
    database: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease_s = 1.5
    for module in (dispatcher, claiming):
        monkeypatch.setattr(module, "CLAIM_LEASE_S", lease_s)
    calls, may_end = list[str](), asyncio.Event()

    @handles("order.paid", name="test:slow", timeout_s=60)
    async def slow(event: Event, ctx: Context) -> None:
        calls.append(event.id)
        await may_end.wait()

    shop = Workshop(database, broker, [slow], config=WorkerConfig(topic=TOPIC, drain_s=60))

    async def claimed_until() -> datetime:
        [run] = await shop.runs()
        assert run.claimed_until is not None
        return run.claimed_until

    await shop.publish(order_paid(1))
    stop = asyncio.Event()
    leaving = asyncio.create_task(shop.worker().run(stop))
    await eventually(lambda: bool(calls), within_s=60)
    async with shop.working():  # who takes over in a rolling deploy
        stop.set()
        first = await claimed_until()

        async def outlived() -> bool:
            return await claimed_until() > first + timedelta(seconds=2 * lease_s)

        await eventually(outlived)
        assert (calls, leaving.done()) == (["evt_1"], False)
        may_end.set()
        await leaving
        await eventually(lambda: shop.all_succeeded(1))
    assert calls == ["evt_1"]


# case: O8
async def test_what_will_not_begin_any_more_is_given_back_when_the_stop_begins(
    database: Database, broker: Broker
) -> None:
    calls, may_end = list[str](), asyncio.Event()
    may_end.set()

    @handles("order.paid", name="test:slow", concurrency=1)
    async def slow(event: Event, ctx: Context) -> None:
        calls.append(event.id)
        await may_end.wait()

    shop = Workshop(database, broker, [slow], config=WorkerConfig(topic=TOPIC, drain_s=60))
    stop, leaving = asyncio.Event(), shop.worker()
    task = asyncio.create_task(leaving.run(stop))
    await shop.publish(*[order_paid(number) for number in range(300)])
    await eventually(lambda: len(calls) >= 40, within_s=60)  # who is quick has some ahead
    may_end.clear()
    await eventually(lambda: leaving._dispatcher._ahead.count("test:slow") > 0, within_s=60)
    stop.set()

    async def only_one_is_claimed() -> bool:
        return len([run for run in await shop.runs() if run.claimed_by is not None]) == 1

    await eventually(only_one_is_claimed)
    assert not task.done()
    may_end.set()
    await task
