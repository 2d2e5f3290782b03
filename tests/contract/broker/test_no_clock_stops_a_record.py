"""Clocks that differ: what a publisher sends is taken whatever its clock shows, and is kept as long as it should be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from consumer.broker import Broker, TopicConfig
from tests.contract.broker.conftest import Log, message, read, values
from tests.support.kafka import KafkaServer


class ElsewhenClock:
    """A clock that is right but for the date."""

    def __init__(self, ahead: timedelta) -> None:
        self._ahead = ahead

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits by this clock")


AHEAD = timedelta(days=120)


@pytest.mark.parametrize("ahead", [AHEAD, -AHEAD], ids=["ahead", "behind"])
async def test_a_clock_months_off_neither_stops_publishing_nor_loses_a_record(log: Log, ahead: timedelta) -> None:
    # case: I1, I2
    broker = await log.open(ElsewhenClock(ahead))
    name = await log.topic(broker)
    week = TopicConfig(name=name, partitions=4, retention_s=7 * 86_400, max_record_bytes=100_000)
    await broker.ensure_topics([week])
    await broker.publish(name, message("one"))
    await broker.publish_many(name, [message(f"many/{number}") for number in range(50)])
    member = broker.subscribe([name], log.group())
    await member.start()
    found = await read(member, 51)
    assert values(found) == ["one", *(f"many/{number}" for number in range(50))]
    if log.server is not None:  # one broker, one clock: a record's age does not depend on who published it
        assert abs(found[0].published_at - datetime.now(UTC)) < timedelta(minutes=5)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("ahead", [AHEAD, -AHEAD], ids=["ahead", "behind"])
async def test_a_topic_that_keeps_the_publishers_time_takes_records_from_any_clock_too(
    kafka_broker: KafkaServer, ahead: timedelta
) -> None:
    # case: I1, I2
    address = f"127.0.0.1:{kafka_broker.port}"
    name = f"by-their-time-{'ahead' if ahead > timedelta() else 'behind'}"
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    limits = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": "3600000", "retention.ms": "-1"}
    limits["max.message.bytes"] = "1048588"
    made = await admin.create_topics(
        [NewTopic(name=name, num_partitions=1, replication_factor=1, topic_configs=limits)]
    )
    await admin.close()
    assert [error[1] for error in made.topic_errors] == [0]
    log = Log("kafka", Path("unused"), kafka_broker)
    try:
        broker: Broker = await log.open(ElsewhenClock(ahead))
        await broker.ensure_topics([TopicConfig(name=name, partitions=1, retention_s=None, max_record_bytes=100_000)])
        await broker.publish(name, message("one"))
        await broker.publish_many(name, [message("two"), message("three")])
        member = broker.subscribe([name], log.group())
        await member.start()
        assert values(await read(member, 3)) == ["one", "two", "three"]
        lag = await member.lag()
        assert all(one.oldest_s is None or one.oldest_s < 60 for one in lag.values()), lag
    finally:
        await log.close()


@pytest.mark.kafka
@pytest.mark.slow
async def test_a_record_whose_publisher_gave_microseconds_for_milliseconds_is_read_like_any_other(
    kafka_broker: KafkaServer,
) -> None:
    # case: I1, I10
    address = f"127.0.0.1:{kafka_broker.port}"
    admin, other = AIOKafkaAdminClient(bootstrap_servers=address), AIOKafkaProducer(bootstrap_servers=address)
    await admin.start()
    anyones = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}
    await admin.create_topics([NewTopic("anyones", 1, 1, topic_configs=anyones)])
    await admin.close()
    await other.start()
    await other.send_and_wait("anyones", b"theirs", timestamp_ms=int(datetime.now(UTC).timestamp() * 1e6))
    await other.stop()
    log = Log("kafka", Path("unused"), kafka_broker)
    try:
        broker: Broker = await log.open()
        await broker.publish("anyones", message("ours"))
        group = log.group()
        [report] = await broker.look_at_groups({group: "anyones"})
        assert (report.records, report.oldest_at) == (2, None)
        member = broker.subscribe(["anyones"], group)
        await member.start()
        found = await read(member, 2)
        assert values(found) == ["theirs", "ours"]
        assert abs(found[0].published_at - datetime.now(UTC)) < timedelta(minutes=5)
    finally:
        await log.close()
