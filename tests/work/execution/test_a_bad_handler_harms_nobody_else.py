"""One handler hangs, one blocks its event loop, one never gives it back: the others run at full speed, and the worker
stays in its group (case H4). The figures are printed with `-s`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from consumer.broker import Broker, TopicConfig, open_broker
from consumer.ledger import Database
from consumer.ledger.engine import schema
from consumer.ledger.engine.database import HELD_MOST, POOL_SIZE
from consumer.ledger.handling import handlers
from consumer.plugin import Context, Event, handles
from consumer.work.execution import executor
from consumer.work.worker import WorkerConfig
from tests.support.ports import eventually
from tests.work.membership import watching
from tests.work.workshop import Workshop, message, order_paid, service_event

EVENTS = 300
BLOCK_S = 2.0
BUSY_S = 4.0
"""What a machine that does other things may cost. Who waited for those that hang would wait for 19 s, for those that
block 150."""

Handles = Callable[..., Coroutine[Any, Any, None]]


@dataclass
class Pace:
    """When a handler was done with how many events."""

    began: float = 0.0
    done: int = 0
    seconds: float = 0.0

    def step(self) -> None:
        """One more."""
        self.done += 1
        if self.done == EVENTS:
            self.seconds = time.monotonic() - self.began


def steady(pace: Pace, name: str | None = None) -> Handles:
    """A handler as it should be: a little waiting, no blocking."""

    @handles("order.paid", concurrency=8, name=name)
    async def fine(event: Event, ctx: Context) -> None:
        await asyncio.sleep(0.002)
        pace.step()

    return fine


async def pace_of(shop: Workshop, pace: Pace) -> float:
    await shop.publish(*[order_paid(f"{uuid.uuid4().hex[:8]}-{number}") for number in range(EVENTS)])
    pace.began = time.monotonic()
    async with shop.working() as worker:
        await eventually(lambda: pace.done >= EVENTS, within_s=60)
        # The worker is still a member, still polls, and is not behind.
        assert worker.polls
        lag = await worker.lag()
        assert len(lag) == 3
        assert all(one.records == 0 for one in lag.values())
    return EVENTS / pace.seconds


# case: H4
@pytest.mark.slow
async def test_hanging_and_blocking_cost_the_others_nothing(sqlite_ledger: Database, broker: Broker) -> None:
    alone = Pace()
    free = await pace_of(Workshop(sqlite_ledger, broker, [steady(alone)]), alone)

    blocked: list[float] = []

    @handles("order.paid", timeout_s=0.5, concurrency=8)
    async def hangs(event: Event, ctx: Context) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue  # and it ignores being told to stop

    @handles("order.paid", concurrency=4)
    async def blocks(event: Event, ctx: Context) -> None:
        blocked.append(time.monotonic())
        time.sleep(BLOCK_S)  # noqa: ASYNC251 - this is what it is about

    together, elsewhere = Pace(), Pace()
    neighbours = [steady(elsewhere, "test:elsewhere")]
    shop = Workshop(sqlite_ledger, broker, [steady(together), hangs, blocks], neighbours=neighbours)
    shop.config = WorkerConfig(topic=shop.config.topic, group="second", drain_s=1)
    # The second group reads the first one's events again: they are duplicates, so only new ones are run.
    elsewhere.began = time.monotonic()
    harmed = await pace_of(shop, together)
    assert elsewhere.done == EVENTS
    print(f"\nalone {free:.0f} events/s; beside a hanging and a blocking handler {EVENTS / elsewhere.seconds:.0f} "
          f"in another plugin, {harmed:.0f} in the same")  # fmt: skip
    assert blocked, "the blocking handler ran"
    # Another plugin has a loop of its own; in the same one the first block, until it is noticed, is shared.
    assert elsewhere.seconds < alone.seconds * 2 + BUSY_S
    assert together.seconds < alone.seconds * 2 + BLOCK_S + BUSY_S
    assert shop.figure("consumer_work_handler_blocked_total", handler="blocks") >= 1


# case: H4
@pytest.mark.slow
async def test_a_loop_that_never_comes_back_is_given_up(sqlite_ledger: Database, broker: Broker) -> None:
    release, pace = threading.Event(), Pace()

    @handles("order.paid", timeout_s=1, concurrency=1, attempts=1, name="test:wedges")
    async def wedges(event: Event, ctx: Context) -> None:
        release.wait(120)

    shop = Workshop(sqlite_ledger, broker, [wedges, steady(pace)])
    shop.config = WorkerConfig(topic=shop.config.topic, drain_s=1, lost_after_s=1.0)
    try:
        rate = await pace_of(shop, pace)
        print(f"\nbeside a handler that wedges its loop for good {rate:.0f} events/s")
        async with shop.working():
            await eventually(lambda: paused(sqlite_ledger, "test:wedges"), within_s=40)
    finally:
        release.set()
    assert (await shop.statuses(".fine")) == ["succeeded"] * EVENTS


# case: H4
@pytest.mark.slow
async def test_a_transaction_that_hangs_does_not_stall_ingest(sqlite_ledger: Database, broker: Broker) -> None:
    @handles("order.paid", transactional=True, timeout_s=0.3, name="test:hangs")
    async def hangs(event: Event, ctx: Context) -> None:
        await asyncio.Event().wait()

    pace = Pace()
    shop = Workshop(sqlite_ledger, broker, [hangs, steady(pace)])
    rate = await pace_of(shop, pace)
    print(f"\nbeside a transactional handler that hangs {rate:.0f} events/s")
    async with shop.working():
        await eventually(lambda: paused(sqlite_ledger, "test:hangs"), within_s=20)
    assert not {"succeeded", "dead"} & set(await shop.statuses("test:hangs"))


# case: H4
async def test_a_task_of_a_transaction_that_exits_is_its_handlers_failure(
    sqlite_ledger: Database, broker: Broker
) -> None:
    """`sys.exit()` in a task that the handler started ended the worker's loop, and the worker."""

    async def leaves() -> None:
        sys.exit(3)

    @handles("order.paid", transactional=True, attempts=1, name="test:leaves")
    async def starts(event: Event, ctx: Context) -> None:
        asyncio.create_task(leaves()).cancel()  # one that never begins
        async with asyncio.TaskGroup() as group:
            group.create_task(leaves())

    @handles("order.paid", transactional=True, name="test:beside")
    async def beside(event: Event, ctx: Context) -> None:
        ctx.emit("parcel.wanted", event.key, {})

    shop = Workshop(sqlite_ledger, broker, [starts, beside])
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.count("leaves", "dead", 1), within_s=30)
        await eventually(lambda: shop.count("beside", "succeeded", 1), within_s=30)
    assert [row.code for row in await shop.runs("leaves")] == ["handler_crashed"]


# case: H4
async def test_a_transaction_that_ignores_its_cancellation_is_given_up(
    sqlite_ledger: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "CANCEL_AGAIN_S", 0.02)
    given_up: list[str] = []

    @handles("order.paid", transactional=True, timeout_s=0.1, name="test:keeps")
    async def keeps(event: Event, ctx: Context) -> None:
        until = time.monotonic() + 20
        while not given_up and time.monotonic() < until:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    @handles("order.paid", name="test:ships")
    async def ships(event: Event, ctx: Context) -> None:
        shipped.append(event.id)

    shipped: list[str] = []
    # A process would end here; this one has the handler end instead.
    shop = Workshop(sqlite_ledger, broker, [keeps, ships], give_up=lambda name, _: given_up.append(name))
    await shop.publish(*[order_paid(number) for number in range(3)])
    async with shop.working():
        await eventually(lambda: len(shipped) == 3)
    assert given_up == ["test:keeps"]


# case: R11
@pytest.mark.postgres
async def test_transactions_that_take_long_leave_connections_for_everything_else(
    postgres_url: str, broker: Broker
) -> None:
    """Sixteen at once took all there are: nothing was claimed, renewed or stored, of a database that was well."""
    database, may_end, held = Database(postgres_url), asyncio.Event(), list[int]()
    await schema.upgrade(database)
    running, wanted = 0, POOL_SIZE + 6

    @handles("order.paid", transactional=True, name="test:reports", timeout_s=60, first_wait_s=0.01)
    async def reports(event: Event, ctx: Context) -> None:
        nonlocal running
        if ctx.attempt == 1:
            raise ValueError("not with the batch")
        running += 1
        held.append(running)
        await may_end.wait()
        running -= 1

    @handles("order.expired", name="test:ships")
    async def ships(event: Event, ctx: Context) -> None:
        """Nothing."""

    shop = Workshop(database, broker, [reports, ships])
    async with shop.working():
        await shop.publish(*[order_paid(number) for number in range(wanted)])
        await eventually(lambda: shop.count("reports", "retrying", wanted))
        await eventually(lambda: running == HELD_MOST)
        await shop.publish(service_event("evt_late", "order.expired", "late"))
        await eventually(lambda: shop.count("ships", "succeeded", 1), within_s=8)
        may_end.set()
        await eventually(lambda: shop.count("reports", "succeeded", wanted), within_s=30)
    await database.stop()
    assert max(held) == HELD_MOST


# case: H4
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(180)
async def test_it_stays_in_its_kafka_group(sqlite_ledger: Database, kafka_url: str) -> None:
    """One handler hangs, one blocks for twice the group's patience (15 s): Kafka sees the same member all the time,
    no rebalance, and the others lose no more than the moment until it is noticed."""
    topic = f"harm-{uuid.uuid4().hex[:8]}"
    broker = open_broker(kafka_url)
    await broker.start()
    topics = [
        TopicConfig(name=name, partitions=3, retention_s=None, max_record_bytes=1 << 20)
        for name in (topic, f"{topic}.dead")
    ]
    alone, together, elsewhere, wedged = Pace(), Pace(), Pace(), threading.Event()

    @handles("order.paid", name="test:blocks", timeout_s=60, concurrency=1)
    async def blocks(event: Event, ctx: Context) -> None:
        wedged.wait(30)

    @handles("order.paid", name="test:hangs", timeout_s=30, concurrency=8)
    async def hangs(event: Event, ctx: Context) -> None:
        await asyncio.Event().wait()

    try:
        await broker.ensure_topics(topics)
        shop = Workshop(sqlite_ledger, broker, [steady(alone)])
        shop.config = WorkerConfig(topic=topic, group=f"{topic}-alone", drain_s=1)
        free = await kafka_pace(shop, alone, topic)
        neighbours = [steady(elsewhere, "test:elsewhere")]
        shop = Workshop(sqlite_ledger, broker, [steady(together), blocks, hangs], neighbours=neighbours)
        shop.config = WorkerConfig(topic=topic, group=topic, drain_s=1, lost_after_s=2.0)
        async with shop.working() as worker:
            await eventually(lambda: worker.polls, within_s=30)
            async with watching(kafka_url, topic) as group:
                await eventually(lambda: "Stable" in group.states, within_s=30)
                group.states.clear()
                group.members.clear()
                began = elsewhere.began = time.monotonic()
                harmed = await publish_and_wait(shop, together, topic)
                await eventually(lambda: time.monotonic() - began > 20, within_s=25)  # beyond the group's patience
                assert elsewhere.done == EVENTS
                print(f"\non Kafka, alone {free:.0f} events/s; beside a blocked and a hanging handler "
                      f"{EVENTS / elsewhere.seconds:.0f} in another plugin, {harmed:.0f} in the same; "
                      f"{group.looks} looks in {time.monotonic() - began:.0f} s: {group.states}, "
                      f"{len(group.members)} set(s) of members")  # fmt: skip
                assert group.never_changed
                assert len(group.members[0]) == 1
            assert len(await worker.lag()) == 3
            assert all(one.records == 0 for one in (await worker.lag()).values())
        # It blocks for 30 s; other plugins do not notice, its own loses the 3 s until it is given up.
        assert elsewhere.seconds < alone.seconds * 2 + BUSY_S
        assert together.seconds < 25
        assert shop.figure("consumer_work_handler_blocked_total", handler="blocks") >= 1
    finally:
        wedged.set()
        await broker.stop()


async def kafka_pace(shop: Workshop, pace: Pace, topic: str) -> float:
    async with shop.working() as worker:
        await eventually(lambda: worker.polls, within_s=30)
        return await publish_and_wait(shop, pace, topic)


async def publish_and_wait(shop: Workshop, pace: Pace, topic: str) -> float:
    events = [order_paid(f"{uuid.uuid4().hex[:8]}-{number}") for number in range(EVENTS)]
    pace.began = time.monotonic()
    await shop.broker.publish_many(topic, [message(event) for event in events])
    await eventually(lambda: pace.done >= EVENTS, within_s=60)
    return EVENTS / pace.seconds


async def paused(database: Database, name: str) -> str | None:
    async with database.reading() as session:
        return next((one.paused_reason for one in await handlers.everyone(session) if one.name == name), None)
