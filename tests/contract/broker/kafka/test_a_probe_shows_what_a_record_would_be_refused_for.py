"""Whether a topic takes records of ours is known before the first one, and asking leaves none there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumer.app.measured_broker import MeasuredBroker
from consumer.broker import KafkaBroker, KafkaSecurity, TopicConfig
from consumer.errors import BrokerUnavailable, TopicForbidden, TopicUnknown
from consumer.telemetry.metrics import Metrics
from tests.faults.cluster import PASSWORD, TOPIC, USER, Cluster, cluster
from tests.support.ports import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

EVENTS = TopicConfig(name="events", partitions=2, retention_s=None, max_record_bytes=100_000)


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path / "kafka") as found:
        yield found


# case: I2, O2
async def test_a_grant_taken_away_is_named_and_its_return_is_seen(brokers: Cluster) -> None:
    security = KafkaSecurity(
        security_protocol="SASL_SSL", ca_file=brokers.server.ca_file, username=USER, password=PASSWORD
    )
    ticks = iter(range(0, 1_000_000, 60))
    broker = MeasuredBroker(
        KafkaBroker([f"127.0.0.1:{brokers.proxy.port}"], security=security), Metrics(), lambda: float(next(ticks))
    )
    await broker.start()
    try:
        await broker.ensure_topics([EVENTS])
        broker.writes.add("events")

        async def is_taken() -> bool:
            return await _answer(broker) is True

        await eventually(is_taken, within_s=20, every_s=0.2, what="the probe is taken")
        assert broker.refusal is None

        await brokers.deny(TOPIC, "events", "WRITE")

        async def is_refused() -> bool:
            return await _answer(broker) is TopicForbidden

        await eventually(is_refused, within_s=20, every_s=0.2, what="the probe is refused")
        refusal = broker.refusal
        assert isinstance(refusal, TopicForbidden)
        assert refusal.fields["topic"] == "events"
        await brokers.allow(TOPIC, "events", "WRITE")

        await eventually(is_taken, within_s=20, every_s=0.2, what="the probe is taken again")
        assert broker.refusal is None

        async def is_unknown() -> bool:
            try:
                await broker.probe(["nowhere"])
            except TopicUnknown:
                return True
            return False

        await eventually(is_unknown, within_s=20, every_s=0.2, what="a topic that is not there is named")
        [report] = await broker.look_at_groups({"nobody": "events"})
        assert report.records == 0
    finally:
        await broker.stop()


async def _answer(broker: MeasuredBroker) -> bool | type[BrokerUnavailable]:
    """True, or what it refuses; a broker that is busy may be late."""
    try:
        return await broker.check()
    except BrokerUnavailable as error:
        return type(error)
