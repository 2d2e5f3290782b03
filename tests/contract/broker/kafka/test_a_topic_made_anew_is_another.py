"""A topic that was removed and made anew is another one, although it goes by the same name and as far as the first."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from consumer.broker import Broker, KafkaBroker, TopicConfig
from consumer.broker.groups import GroupReport
from consumer.ledger.log_memory import TopicMemory, is_another
from tests.contract.broker.conftest import Log, message
from tests.support.kafka import KafkaServer
from tests.support.ports import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.parametrize("log", ["kafka"], indirect=True)]


async def filled(log: Log, broker: Broker, name: str) -> GroupReport:
    """What a look says after the topic was made, and records were published."""

    async def is_there() -> bool:
        await broker.ensure_topics([TopicConfig(name=name, partitions=1, retention_s=None, max_record_bytes=100_000)])
        return True

    await eventually(is_there, within_s=60, every_s=0.3)
    await broker.publish_many(name, [message(str(number)) for number in range(5)])
    [report] = await broker.look_at_groups({log.group(): name})
    return report


# case: O6
async def test_its_id_tells(log: Log, broker: Broker, kafka_broker: KafkaServer) -> None:
    name = log.group()
    first = await filled(log, broker, name)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.url.removeprefix("kafka://"))
    await admin.start()

    async def is_gone() -> bool:
        return name not in await admin.list_topics()

    try:
        await admin.delete_topics([name])
        await eventually(is_gone, within_s=60, every_s=0.3)
    finally:
        await admin.close()
    second = await filled(log, await log.open(), name)
    assert first.topic_id is not None
    assert (first.ends, second.ends) == ((5,), (5,))
    remembered = TopicMemory(topic=name, topic_id=first.topic_id, ends=first.ends)
    assert not is_another(remembered, first.topic_id, first.ends)
    assert is_another(remembered, second.topic_id, second.ends)


async def test_a_broker_that_is_too_old_to_have_ids_tells_the_rest(
    log: Log, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_old(*_: object) -> None:
        raise NotImplementedError("Support for it has not yet been added")

    monkeypatch.setattr("consumer.broker.kafka.groups._TopicsByName.prepare", too_old)
    report = await filled(log, broker, log.group())
    assert (report.topic_id, report.ends, report.records) == (None, (5,), 5)


# case: O6
async def test_a_cluster_made_anew_at_the_same_address_is_another_without_a_restart(log: Log, broker: Broker) -> None:
    """What it answers when it is looked whether it answers says which it is, and reaches all who use it."""
    assert await broker.check()
    first = broker.identity
    assert isinstance(broker, KafkaBroker)
    publisher = broker._publisher
    assert publisher is not None
    assert publisher.client is not None
    publisher.client.cluster.update_metadata(SimpleNamespace(cluster_id="another", brokers=()))
    assert (broker.identity, first) == ("Kafka another", (await log.open()).identity)
    assert await broker.check()
    assert broker.identity == first, "that was no answer of it"
