"""One handler hangs, one blocks its event loop, one never gives it back: the others run at full speed, and the worker
stays in its group (case H4). The figures are printed with `-s`."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from consumer.broker import Broker, TopicConfig, open_broker
from consumer.ledger import Database, handlers
from consumer.plugin import Context, Event, handles
from consumer.work.worker import WorkerConfig
from tests.support.ports import eventually
from tests.work.workshop import Workshop, message, order_paid

EVENTS = 300
BLOCK_S = 2.0

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


def steady(pace: Pace) -> Handles:
    """A handler as it should be: a little waiting, no blocking."""

    @handles("order.paid", concurrency=8)
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

    together = Pace()
    shop = Workshop(sqlite_ledger, broker, [steady(together), hangs, blocks])
    shop.config = WorkerConfig(topic=shop.config.topic, group="second", drain_s=1)
    # The second group reads the first one's events again: they are duplicates, so only new ones are run.
    harmed = await pace_of(shop, together)
    print(f"\nalone {free:.0f} events/s, beside a hanging and a blocking handler {harmed:.0f} events/s")
    assert blocked, "the blocking handler ran"
    # All three share a plugin: the first block (until it is noticed) is shared, nothing after it.
    assert together.seconds < alone.seconds * 2 + BLOCK_S + 1.5
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
async def test_a_transaction_that_hangs_does_not_stall_the_intake(sqlite_ledger: Database, broker: Broker) -> None:
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
@pytest.mark.slow
@pytest.mark.kafka
async def test_it_stays_in_its_kafka_group(sqlite_ledger: Database, kafka_url: str) -> None:
    """A handler blocks for longer than the group's patience would be, were it on the worker's loop."""
    topic = f"harm-{uuid.uuid4().hex[:8]}"
    broker = open_broker(kafka_url)
    await broker.start()
    pace, wedged = Pace(), threading.Event()

    @handles("order.paid", name="test:blocks", timeout_s=60, concurrency=1)
    async def blocks(event: Event, ctx: Context) -> None:
        wedged.wait(30)

    shop = Workshop(sqlite_ledger, broker, [blocks, steady(pace)])
    shop.config = WorkerConfig(topic=topic, group=topic, drain_s=1, lost_after_s=2.0)
    topics = [
        TopicConfig(name=name, partitions=3, retention_s=None, max_record_bytes=1 << 20)
        for name in (topic, f"{topic}.dead")
    ]
    try:
        await broker.ensure_topics(topics)
        await broker.publish_many(topic, [message(order_paid(number)) for number in range(EVENTS)])
        pace.began = time.monotonic()
        async with shop.working() as worker:
            await eventually(lambda: pace.done >= EVENTS, within_s=60)
            print(f"\non Kafka, beside a blocked handler {EVENTS / pace.seconds:.0f} events/s")
            assert len(await worker.lag()) == 3
            assert shop.figure("consumer_work_handler_blocked_total", handler="blocks") >= 1
    finally:
        wedged.set()
        await broker.stop()


async def paused(database: Database, name: str) -> str | None:
    async with database.reading() as session:
        return next((one.paused_reason for one in await handlers.everyone(session) if one.name == name), None)
