"""Whether topics are missing or may lose records, and how far each group is, are figures. Of a log that nobody can look
at none is shown: an age would go on growing in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from consumer.app.alarms import log_watch
from consumer.app.alarms.log_watch import LogWatch
from consumer.broker import Broker, GroupReport, Message, TopicConfig, TopicReport, open_broker
from consumer.clock import SystemClock
from consumer.errors import BrokerUnavailable, ClusterForbidden, LedgerUnavailable
from consumer.ledger import Database
from consumer.telemetry.metrics import Metrics
from tests.support.ports import eventually

TOPIC = TopicConfig(name="payments.events", partitions=1, retention_s=60, max_record_bytes=1000)
GROUP = "payments.work"


@asynccontextmanager
async def watched(broker: Broker, ledger: Database) -> AsyncIterator[Metrics]:
    """A log that is looked at again and again."""

    async def nothing(_: object) -> None:
        return None

    metrics, stop = Metrics(), asyncio.Event()
    watch = LogWatch(
        broker, ledger, {GROUP: TOPIC.name}, metrics=metrics, clock=SystemClock(), on_replaced=nothing, topics=[TOPIC]
    )
    task = asyncio.create_task(watch.run(stop))
    yield metrics
    stop.set()
    await task


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(log_watch, "LOOK_EVERY_S", 0.02)
    broker = open_broker(f"embedded:{tmp_path / 'log.db'}")
    await broker.start()
    yield broker
    await broker.stop()


# case: O6
async def test_a_topic_that_is_missing(broker: Broker, sqlite_ledger: Database) -> None:
    async with watched(broker, sqlite_ledger) as metrics:

        def missing() -> float | None:
            labels = {"code": "topics_missing", "plugin": ""}
            return metrics.registry.get_sample_value("consumer_status_code", labels)

        await eventually(lambda: missing() == 1, within_s=20)
        await broker.ensure_topics([TOPIC])
        await eventually(lambda: missing() == 0, within_s=20)


# case: O6
async def test_a_topic_that_somebody_set_so_that_it_may_lose_records(
    broker: Broker, sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: tuple[str, ...] = ("cleanup.policy=compact instead of delete",)

    async def look(_: Iterable[TopicConfig]) -> Sequence[TopicReport]:
        return [TopicReport(name=TOPIC.name, partitions=1, wrong=wrong)]

    await broker.ensure_topics([TOPIC])
    monkeypatch.setattr(broker, "look", look)
    async with watched(broker, sqlite_ledger) as metrics:

        def told(code: str) -> float | None:
            return metrics.registry.get_sample_value("consumer_status_code", {"code": code, "plugin": ""})

        await eventually(lambda: told("topic_misconfigured") == 1, within_s=20)
        assert told("topics_missing") == 0
        wrong = ()
        await eventually(lambda: told("topic_misconfigured") == 0, within_s=20)


async def test_who_may_not_look_at_topics_sees_the_groups(
    broker: Broker, sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_watch, "SHOWN_FOR_S", 0.0)

    async def forbidden(_: Iterable[TopicConfig]) -> Sequence[TopicReport]:
        raise ClusterForbidden

    await broker.ensure_topics([TOPIC])
    monkeypatch.setattr(broker, "look", forbidden)
    with structlog.testing.capture_logs() as logs:
        async with watched(broker, sqlite_ledger) as metrics:
            shown = metrics.registry.get_sample_value
            await eventually(lambda: [one for one in logs if one["event"] == "topics_not_looked_at"])
            await eventually(lambda: shown("consumer_group_lag_records", {"group": GROUP}) == 0)
            assert shown("consumer_status_code", {"code": "topics_missing", "plugin": ""}) is None


# case: O6, O3
async def test_a_log_that_nobody_can_look_at(
    broker: Broker, sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_watch, "SHOWN_FOR_S", 0.1)
    look = broker.look_at_groups

    async def away(_: Mapping[str, str]) -> Sequence[GroupReport]:
        raise BrokerUnavailable("nobody answers")

    await broker.ensure_topics([TOPIC])
    await broker.publish(TOPIC.name, Message(key=b"k", value=b"v"))
    async with watched(broker, sqlite_ledger) as metrics:

        def behind() -> float | None:
            return metrics.registry.get_sample_value("consumer_group_lag_records", {"group": GROUP})

        await eventually(lambda: behind() == 1, within_s=20)
        monkeypatch.setattr(broker, "look_at_groups", away)
        await eventually(lambda: behind() is None, within_s=20)
        monkeypatch.setattr(broker, "look_at_groups", look)
        await eventually(lambda: behind() == 1, within_s=20)


# case: I22, O6
async def test_a_log_that_breaks_who_looks_at_it_ends_no_role(
    broker: Broker, sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may raise anything of what others wrote; whoever only looks goes on."""
    look_at_groups, looked = broker.look_at_groups, 0

    async def broken(_: object) -> Sequence[TopicReport]:
        nonlocal looked
        looked += 1
        raise ValueError("what is this?")

    await broker.ensure_topics([TOPIC])
    monkeypatch.setattr(broker, "look_at_groups", broken)
    monkeypatch.setattr(broker, "look", broken)
    async with watched(broker, sqlite_ledger) as metrics:
        await eventually(lambda: looked > 4, within_s=20)
        monkeypatch.setattr(broker, "look_at_groups", look_at_groups)
        shown = metrics.registry.get_sample_value
        await eventually(lambda: shown("consumer_group_lag_records", {"group": GROUP}) == 0, within_s=20)


async def test_a_ledger_that_is_away_hides_nothing_of_the_log(
    broker: Broker, sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_watch, "SHOWN_FOR_S", 0.1)
    refused = 0

    async def away(*_: object, **__: object) -> None:
        nonlocal refused
        refused += 1
        raise LedgerUnavailable

    await broker.ensure_topics([TOPIC])
    await broker.publish(TOPIC.name, Message(key=b"k", value=b"v"))
    monkeypatch.setattr(LogWatch, "_remember", away)
    async with watched(broker, sqlite_ledger) as metrics:
        await eventually(lambda: refused > 20, within_s=20)
        assert metrics.registry.get_sample_value("consumer_group_lag_records", {"group": GROUP}) == 1


async def test_a_group_whose_topic_is_gone_is_not_shown(
    broker: Broker, sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(_: Mapping[str, str]) -> Sequence[GroupReport]:
        return []

    await broker.ensure_topics([TOPIC])
    async with watched(broker, sqlite_ledger) as metrics:

        def behind() -> float | None:
            return metrics.registry.get_sample_value("consumer_group_lag_records", {"group": GROUP})

        await eventually(lambda: behind() == 0, within_s=20)
        monkeypatch.setattr(broker, "look_at_groups", none)
        await eventually(lambda: behind() is None, within_s=20)
