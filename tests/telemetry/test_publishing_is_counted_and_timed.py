"""Publishing is counted and timed, and what fails is counted by its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.app.measured_broker import MeasuredBroker
from consumer.broker import EmbeddedBroker, Message, TopicConfig
from consumer.errors import BrokerError
from consumer.telemetry.metrics import Metrics


async def test_records_are_counted_by_outcome(tmp_path: Path) -> None:
    metrics = Metrics()
    broker = MeasuredBroker(EmbeddedBroker(tmp_path / "log.db"), metrics)
    await broker.start()
    try:
        await broker.ensure_topics([TopicConfig(name="t", partitions=2, retention_s=None, max_record_bytes=1024)])
        await broker.publish("t", Message(key=b"k", value=b"v"))
        await broker.publish_many("t", [Message(key=b"k", value=b"v")] * 3)
        with pytest.raises(BrokerError) as refused:
            await broker.publish("t", Message(key=b"k", value=b"v" * 2048))
    finally:
        await broker.stop()
    text = metrics.render().decode()
    assert 'consumer_broker_publishes_total{outcome="published",topic="t"} 4.0' in text
    assert f'consumer_broker_publishes_total{{outcome="{refused.value.code}",topic="t"}} 1.0' in text
    assert 'consumer_broker_publish_seconds_count{topic="t"} 2.0' in text
