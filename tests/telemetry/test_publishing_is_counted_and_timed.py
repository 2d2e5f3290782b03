"""Publishing is counted and timed, and what fails is counted by its reason."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from consumer.app.measured_broker import MeasuredBroker
from consumer.broker import EmbeddedBroker, Message, TopicConfig
from consumer.errors import BrokerError, BrokerUnavailable
from consumer.telemetry.metrics import Metrics


async def test_records_are_counted_by_outcome(tmp_path: Path) -> None:
    metrics = Metrics()
    broker = MeasuredBroker(EmbeddedBroker(tmp_path / "log.db"), metrics)
    await broker.start()
    try:
        await broker.ensure_topics([TopicConfig(name="t", partitions=2, retention_s=None, max_record_bytes=1024)])
        await broker.publish("t", Message(key=b"k", value=b"v"))
        await broker.publish_many("t", [Message(key=b"k", value=b"v")] * 3)
        large = Message(key=b"k", value=b"v" * 2048)
        with pytest.raises(BrokerError) as refused:
            await broker.publish("t", large)
        with pytest.raises(type(refused.value)):
            await broker.publish_many("t", [large, Message(key=b"k", value=b"v"), Message(key=b"other", value=b"v")])
    finally:
        await broker.stop()
    text = metrics.render().decode()
    assert 'consumer_broker_publishes_total{outcome="published",topic="t"} 5.0' in text
    assert f'consumer_broker_publishes_total{{outcome="{refused.value.code}",topic="t"}} 3.0' in text
    assert 'consumer_broker_publish_seconds_count{topic="t"} 2.0' in text


class Election(EmbeddedBroker):
    """A log that takes no record while `lasts`."""

    lasts = True

    async def publish(self, topic: str, message: Message, timeout_s: float = 5.0) -> None:
        if self.lasts:
            raise BrokerUnavailable


async def test_a_refusal_is_told_while_it_may_last(tmp_path: Path) -> None:
    log, at = Election(tmp_path / "log.db"), [0.0]
    broker = MeasuredBroker(log, Metrics(), lambda: at[0])

    async def publish(when_s: float) -> None:
        at[0] = when_s
        with suppress(BrokerUnavailable):
            await broker.publish("t", Message(key=b"k", value=b"v"))

    def is_told(when_s: float) -> bool:
        at[0] = when_s
        return broker.refusal is not None

    await publish(0)
    await publish(8)
    assert [is_told(when_s) for when_s in [9, 67, 69]] == [True, True, False], (
        "an election is over by then, and nobody wrote since"
    )
    await publish(300)
    assert [is_told(when_s) for when_s in [301, 899, 901]] == [True, True, False], (
        "refused for minutes, and never taken"
    )
    log.lasts = False
    await publish(950)
    log.lasts = True
    assert [is_told(when_s) for when_s in [951]] == [False]
    await publish(1000)
    assert [is_told(when_s) for when_s in [1001, 1061]] == [True, False], (
        "it was taken meanwhile: this is the first one again"
    )


async def test_why_it_did_not_start_is_told_until_it_does(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.mkdir()
    broker = MeasuredBroker(EmbeddedBroker(path), Metrics())
    assert not await broker.check()
    with pytest.raises(BrokerError) as why:
        await broker.start()
    for _ in range(2):
        with pytest.raises(BrokerError) as told:
            await broker.check()
        assert told.value.line() == why.value.line()
    path.rmdir()
    await broker.start()
    assert await broker.check()
    await broker.stop()


async def test_a_log_that_takes_nothing_is_told_by_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that nobody waited for any longer had left no trace, and a look without a write cleared the refusal."""
    monkeypatch.setattr("consumer.broker.embedded.broker.READY_WITHIN_S", 0.1)
    at = [0.0]
    broker = MeasuredBroker(EmbeddedBroker(tmp_path / "log.db"), Metrics(), lambda: at[0])
    await broker.start()
    try:
        await broker.ensure_topics([TopicConfig(name="t", partitions=1, retention_s=None, max_record_bytes=1024)])
        assert await broker.check()
        at[0] = 11.0
        with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(BrokerUnavailable):
                await broker.publish("t", Message(key=b"k", value=b"v"), timeout_s=0.1)
            with pytest.raises(BrokerUnavailable):
                await broker.check()
            assert broker.refusal is not None
        monkeypatch.setattr("consumer.broker.embedded.broker.READY_WITHIN_S", 5.0)
        assert await broker.check()
        assert broker.refusal is None
    finally:
        await broker.stop()
