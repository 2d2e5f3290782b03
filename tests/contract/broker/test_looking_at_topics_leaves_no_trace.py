"""Looking at topics tells what is wrong with them and which command mends it, and leaves no trace."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from consumer.broker import Broker, EmbeddedBroker, KafkaBroker, TopicConfig, TopicReport
from consumer.broker.kafka.connection import KafkaConnection
from consumer.broker.kafka.inspection import inspect
from consumer.errors import BrokerError, BrokerUnavailable
from tests.contract.broker.conftest import Log, message
from tests.support.kafka import KafkaServer
from tests.support.ports import eventually, free_port


def wanted(name: str, partitions: int = 2) -> TopicConfig:
    return TopicConfig(name=name, partitions=partitions, retention_s=86_400, max_record_bytes=100_000)


def files(folder: Path) -> dict[str, int]:
    """What lies there, and when it was written last."""
    return {one.name: one.stat().st_mtime_ns for one in folder.iterdir()}


async def test_what_is_missing_is_told_and_not_made(log: Log, broker: Broker) -> None:
    # case: O7
    name = f"t-{uuid.uuid4().hex[:12]}"
    for _ in range(2):
        [found] = await broker.look([wanted(name)])
        assert (found.name, found.partitions, found.wrong) == (name, None, ())
        assert found.remedies
    await broker.ensure_topics([wanted(name)])
    [found] = await broker.look([wanted(name)])
    assert (found.partitions, found.wrong, found.odd, found.remedies) == (2, (), (), ())
    assert found.newest_at is None


async def test_the_newest_record_tells_the_logs_time(log: Log, broker: Broker) -> None:
    # case: O2
    name = f"t-{uuid.uuid4().hex[:12]}"
    await broker.ensure_topics([wanted(name, partitions=3)])
    for number in range(10):
        await broker.publish(name, message(str(number), f"k{number}"))
    [found, missing] = await broker.look([wanted(name, partitions=3), wanted("t-not-there")])
    assert missing.partitions is None
    assert found.newest_at is not None
    assert abs(datetime.now(UTC) - found.newest_at) < timedelta(seconds=30)


async def test_a_log_that_nobody_has_made_stays_unmade(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "log.db"
    [found] = await EmbeddedBroker(path).look([wanted("t")])
    assert found.partitions is None
    assert not path.parent.exists()


async def test_a_closed_log_is_read_without_files_beside_it(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "log.db")
    await broker.start()
    await broker.ensure_topics([wanted("t")])
    await broker.publish("t", message("x"))
    await broker.stop()
    before = files(tmp_path)
    [found] = await EmbeddedBroker(tmp_path / "log.db").look([wanted("t", partitions=5)])
    assert (found.partitions, bool(found.odd)) == (2, True)
    assert files(tmp_path) == before
    (tmp_path / "other.db").write_bytes(b"not a database at all, but somebody's letter" * 50)
    with pytest.raises(BrokerError):
        await EmbeddedBroker(tmp_path / "other.db").look([wanted("t")])


@pytest.mark.kafka
@pytest.mark.slow
async def test_every_setting_that_could_lose_records_comes_with_the_command_that_mends_it(
    kafka_broker: KafkaServer,
) -> None:
    # case: O7
    address = f"127.0.0.1:{kafka_broker.port}"
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    settings = {"cleanup.policy": "compact", "retention.ms": "1000", "max.message.bytes": "5000"}
    settings |= {"min.insync.replicas": "2", "message.timestamp.type": "CreateTime"}
    await admin.create_topics([NewTopic(name=name, num_partitions=1, replication_factor=1, topic_configs=settings)])
    broker = KafkaBroker([address])

    async def shown() -> TopicReport:
        [one] = await broker.look([wanted(name, partitions=12)])
        assert one.partitions == 1, "a topic is there a moment after it was made"
        return one

    found = await eventually(shown)
    for setting in ("cleanup.policy=compact", "retention.ms=1000", "max.message.bytes=5000", "min.insync.replicas=2"):
        assert any(setting in line for line in found.wrong), found.wrong
    assert not any("no record is taken" in line for line in found.wrong), "with one replica Kafka 4 takes them"
    assert any("CreateTime" in line for line in found.odd)
    alter = found.remedies[0]
    assert f"--entity-name {name}" in alter
    for setting in ("cleanup.policy=delete", "retention.ms=86400000", "message.timestamp.type=LogAppendTime"):
        assert setting in alter
    assert any("--partitions 12" in remedy for remedy in found.remedies)
    assert len(await admin.describe_topics([name])) == 1
    groups = await admin.list_consumer_groups()
    await admin.close()
    assert not [group for group in groups if name in str(group)]


async def test_a_broker_that_is_not_there_is_told_in_time() -> None:
    connection = KafkaConnection(servers=(f"127.0.0.1:{free_port()}",), client_id="t")
    with pytest.raises(BrokerUnavailable):
        await inspect(connection, [wanted("t")])
