"""Kafka tells who reads as a group: each by the name it gave itself, so that a stranger is known from us."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaConsumer

from tests.contract.broker.conftest import Log
from tests.support.kafka import KafkaServer
from tests.support.ports import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.parametrize("log", ["kafka"], indirect=True)
async def test_a_stranger_has_a_name_of_its_own(log: Log, kafka_broker: KafkaServer) -> None:
    # case: O6
    broker = await log.open(client_id="consumer-us")
    topic, group = await log.topic(broker), log.group()
    member = broker.subscribe([topic], group)
    await member.start()
    address = kafka_broker.url.removeprefix("kafka://")
    stranger = AIOKafkaConsumer(topic, bootstrap_servers=address, group_id=group, client_id="somebody")
    await stranger.start()

    async def names() -> tuple[str, ...]:
        [report] = await broker.look_at_groups({group: topic})
        return report.clients

    async def both() -> bool:
        return await names() == ("consumer-us", "somebody")

    async def alone() -> bool:
        return await names() == ("consumer-us",)

    await eventually(both, within_s=60, every_s=0.3)
    await stranger.stop()
    await eventually(alone, within_s=60, every_s=0.3)
