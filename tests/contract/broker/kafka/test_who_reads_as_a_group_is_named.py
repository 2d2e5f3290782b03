"""Kafka tells who reads as a group: each by the name it gave itself, so that a stranger is known from us."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

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


HEARTBEAT = 68
WORD = CompactString("utf-8")


class Answered(Response):  # type: ignore[misc]  # aiokafka has no types
    """ConsumerGroupHeartbeat, version 0, as far as it is looked at."""

    API_KEY, API_VERSION = HEARTBEAT, 0
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16), ("error", WORD))


class Heartbeat(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    """The same, as it is asked."""

    FLEXIBLE_VERSION, API_KEY, API_VERSION, RESPONSE_TYPE = True, HEARTBEAT, 0, Answered
    SCHEMA = Schema(
        ("group", WORD), ("member", WORD), ("epoch", Int32), ("instance", WORD), ("rack", WORD), ("drain_ms", Int32),
        ("topics", CompactArray(WORD)), ("assignor", WORD),
        ("has", CompactArray(("id_high", Int64), ("id_low", Int64), ("partitions", CompactArray(Int32)))),
        ("tags", TaggedFields),
    )  # fmt: skip


class Joining(Request[Heartbeat]):  # type: ignore[misc]  # aiokafka has no types
    """A new member asks to be let in; it stays for as long as a session lasts."""

    API_KEY = HEARTBEAT

    def __init__(self, group: str, topic: str) -> None:
        self._given = group, topic

    def build(self, request_struct_class: Any) -> Any:
        group, topic = self._given
        return request_struct_class(group, "", 0, None, None, 60_000, [topic], None, [], {})


# case: O6
@pytest.mark.parametrize("log", ["kafka"], indirect=True)
async def test_one_that_speaks_the_newer_protocol_hides_nobody(log: Log, kafka_broker: KafkaServer) -> None:
    broker = await log.open(client_id="consumer-us")
    topic, group = await log.topic(broker), log.group()
    member = broker.subscribe([topic], group)
    await member.start()
    stranger = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.url.removeprefix("kafka://"), client_id="somebody")
    await stranger.start()
    answer = await stranger._send_request(Joining(group, topic), await stranger.find_coordinator(group))
    assert answer.error_code == 0, answer
    await stranger.close()
    [report] = await broker.look_at_groups({group: topic})
    assert report.clients == ("consumer-us", "somebody")
    assert report.members == 2
