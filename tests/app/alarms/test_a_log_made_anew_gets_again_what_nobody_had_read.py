"""A log that was made anew has lost what lay in it unread. Our own events among it are published again, under the ids
they had; what was read is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.app.alarms import log_watch
from consumer.app.alarms.log_watch import LOST_AFTER, LogWatch
from consumer.broker import GroupReport, Message, TopicConfig, open_broker
from consumer.clock import SystemClock
from consumer.errors import LedgerUnavailable
from consumer.events import Trust
from consumer.ledger import Database, log_memory
from consumer.ledger.handling import outbox
from consumer.ledger.handling.events import EventKey
from consumer.ledger.log_memory import TopicMemory
from consumer.telemetry.metrics import Metrics
from tests.support.handling.projections import OUTBOX, Projections, said
from tests.support.ports import eventually

TOPIC = TopicConfig(name="payments.events", partitions=1, retention_s=60, max_record_bytes=1000)


@pytest.mark.parametrize("is_another", [True, False], ids=["made anew", "the same"])
async def test_what_was_published_and_never_came(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_another: bool
) -> None:
    monkeypatch.setattr(log_watch, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(log_watch, "PAGE", 2)
    orders = Projections(database, "handlers.fulfilment.handler", options={"matching": "off"})
    for number in range(9):
        await orders.feed(said("order.paid", f"evt_{number}", trust=Trust.READ, order_id=f"A{number}"))
        if number in (1, 5):
            await orders.due()  # published, and the log is gone before anybody has read it
        else:
            await orders.relay()
    broker = open_broker(f"embedded:{tmp_path / 'log.db'}")
    await broker.start()
    await broker.ensure_topics([TOPIC])
    async with database.transaction() as session:
        sent = update(OUTBOX).where(OUTBOX.c.published_at.is_not(None))
        await session.execute(sent.values(published_at=datetime.now(UTC)))
        remembered = TopicMemory(topic=TOPIC.name, topic_id="the one before" if is_another else None)
        await log_memory.keep(session, remembered)
    said_again: list[object] = []

    async def replaced(at: object) -> None:
        said_again.append(at)

    metrics, stop = Metrics(), asyncio.Event()
    groups = {"payments.work": TOPIC.name}
    watch = LogWatch(broker, database, groups, metrics=metrics, clock=SystemClock(), on_replaced=replaced)
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(watch.run(stop))

        async def looked() -> bool:
            async with database.reading() as session:
                return (await log_memory.load(session, TOPIC.name)).topic_id not in (None, "the one before")

        await eventually(looked, within_s=20)
        stop.set()
        await task
        await broker.stop()
    waiting = {row["key"] for row in await orders.rows(OUTBOX) if row["published_at"] is None}
    assert waiting == ({"order:A1", "order:A5"} if is_another else set())
    assert [one["events"] for one in logs if one["event"] == "published_again"] == ([2] if is_another else [])
    assert bool(said_again) == is_another
    before = len(await orders.rows(OUTBOX))
    await orders.relay()
    assert len(await orders.rows(OUTBOX)) == before
    assert all(row["published_at"] is not None for row in await orders.rows(OUTBOX))


# case: G5
@pytest.mark.parametrize("unread", [False, True], ids=["all is read", "some is unread"])
async def test_what_a_log_lost_that_is_the_same(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, unread: bool
) -> None:
    """Also behind many that came to workers of the version before, who took no mark away in a rolling deploy."""
    monkeypatch.setattr(log_watch, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(log_watch, "PAGE", 1)
    orders = Projections(database, "handlers.fulfilment.handler", options={"matching": "off"})
    for number in range(4):
        await orders.feed(said("order.paid", f"evt_{number}", trust=Trust.READ, order_id=f"A{number}"))
        if number == 1:
            await orders.due()  # published, and the log loses it
        else:
            await orders.relay()
    now = datetime.now(UTC)
    async with database.transaction() as session:
        sent = update(OUTBOX).where(OUTBOX.c.published_at.is_not(None))
        await session.execute(sent.values(published_at=now - LOST_AFTER - timedelta(minutes=1), on_way=True))
    broker = open_broker(f"embedded:{tmp_path / 'log.db'}")
    await broker.start()
    await broker.ensure_topics([TOPIC])
    if unread:
        member = broker.subscribe([TOPIC.name], "payments.work")
        await member.start()
        await broker.publish(TOPIC.name, Message(key=b"k", value=b"v"))
    looks: list[int] = []
    real = broker.look_at_groups

    async def looked(groups: Mapping[str, str]) -> Sequence[GroupReport]:
        looks.append(1)
        return await real(groups)

    monkeypatch.setattr(broker, "look_at_groups", looked)

    async def nothing(_: object) -> None: ...

    stop, groups = asyncio.Event(), {"payments.work": TOPIC.name}
    watch = LogWatch(broker, database, groups, metrics=Metrics(), clock=SystemClock(), on_replaced=nothing)
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(watch.run(stop))
        await eventually(lambda: len(looks) > 5, within_s=20)
        stop.set()
        await task
    await broker.stop()
    waits = {row["key"] for row in await orders.rows(OUTBOX) if row["published_at"] is None}
    assert waits == (set() if unread else {"order:A1"})
    assert len([row for row in await orders.rows(OUTBOX) if row["on_way"]]) == (4 if unread else 1)
    assert [one["events"] for one in logs if one["event"] == "published_again"] == ([] if unread else [1])


# case: G5, O8
async def test_another_sync_that_looks_meanwhile_makes_no_log_anew(database: Database, tmp_path: Path) -> None:
    """Two live while a deploy replaces the first. What the second saw of a topic that grows was further than the look
    of the first, which was on its way: `status` was stuck, and everything was reconciled."""
    broker = open_broker(f"embedded:{tmp_path / 'log.db'}")
    await broker.start()
    await broker.ensure_topics([TOPIC])
    await broker.publish(TOPIC.name, Message(key=b"k", value=b"v"))
    told: list[object] = []

    async def replaced(at: object) -> None:
        told.append(at)

    class Slow:
        """Between the answer and what is made of it the topic grows, and the other one looks."""

        async def look_at_groups(self, groups: Mapping[str, str]) -> Sequence[GroupReport]:
            reports = await broker.look_at_groups(groups)
            await broker.publish(TOPIC.name, Message(key=b"k", value=b"v"))
            await watch(broker)._try()
            return reports

    def watch(log: Any) -> LogWatch:
        groups = {"payments.work": TOPIC.name}
        return LogWatch(log, database, groups, metrics=Metrics(), clock=SystemClock(), on_replaced=replaced)

    await watch(broker)._try()
    with structlog.testing.capture_logs() as logs:
        await watch(Slow())._try()
    await broker.stop()
    assert (told, [one["event"] for one in logs]) == ([], [])
    async with database.reading() as session:
        memory = await log_memory.load(session, TOPIC.name)
    assert (memory.ends, memory.replaced_at) == ((2,), None), "what the other one saw stays"


# case: O8, G5
async def test_a_log_made_anew_is_told_first_and_what_it_lost_is_looked_through_however_long_that_takes(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked through within the time of the look, from the beginning each time: above 600,000 events nobody was
    ever told, and nothing was reconciled."""
    monkeypatch.setattr(log_watch, "LIMIT_S", 2.0)
    monkeypatch.setattr(log_watch, "PAGE", 2)
    orders = Projections(sqlite_ledger, "handlers.fulfilment.handler", options={"matching": "off"})
    for number in range(4):
        await orders.feed(said("order.paid", f"evt_{number}", trust=Trust.READ, order_id=f"A{number}"))
    await orders.due()
    async with sqlite_ledger.transaction() as session:
        await session.execute(update(OUTBOX).values(published_at=datetime.now(UTC), on_way=None))
        await log_memory.keep(session, TopicMemory(topic=TOPIC.name, topic_id="the one before"))
    told: list[datetime] = []
    before, pages, real = time.monotonic(), list[int](), outbox.below

    class Anew:
        async def look_at_groups(self, _: Mapping[str, str]) -> Sequence[GroupReport]:
            return [GroupReport(group="payments.work", topic=TOPIC.name, topic_id="new", records=1, ends=(0,))]

    async def replaced(at: datetime) -> None:
        told.append(at)

    async def slow(session: AsyncSession, seq: int, limit: int) -> Sequence[tuple[int, EventKey, bool]]:
        pages.append(seq)
        assert told, "it is told before anything is looked through"
        if len(pages) == 1:
            await eventually(lambda: time.monotonic() - before > 3.0, what="the time of a look is over")
        if len(pages) == 2:
            raise LedgerUnavailable
        return await real(session, seq, limit)

    monkeypatch.setattr(outbox, "below", slow)
    log: Any = Anew()
    watch = LogWatch(
        log, sqlite_ledger, {"payments.work": TOPIC.name}, metrics=Metrics(), clock=SystemClock(), on_replaced=replaced
    )

    async def look() -> tuple[int, TopicMemory]:
        await watch._try()
        async with sqlite_ledger.reading() as session:
            memory = await log_memory.load(session, TOPIC.name)
        return len([row for row in await orders.rows(OUTBOX) if row["published_at"] is None]), memory

    with structlog.testing.capture_logs() as logs:
        waiting, memory = await look()
        assert (waiting, memory.owes) == (2, True), "the ledger went away in the middle"
        waiting, memory = await look()
        assert (waiting, memory.owes) == (len(await orders.rows(OUTBOX)), False)
        seen = len(pages)
        await look()
    assert len(pages) == seen, "once"
    assert set(told) == {memory.replaced_at}
    assert len([one for one in logs if one["event"] == "log_replaced"]) == 1
