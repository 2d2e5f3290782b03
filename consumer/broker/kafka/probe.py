"""Probe: whether a topic takes records from us, asked without leaving one there.

A batch without a record is refused as invalid by a broker that would have taken one, and as forbidden or unknown by one
that would not: it looks at grants and topics first. Disks and replicas it does not ask: those are seen by what is
published.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.produce import ProduceRequest

from consumer.causes import of_kafka

ALL_REPLICAS: Final = -1
NOTHING: Final = b""


async def probe(client: Any, topic: str, within_s: float) -> None:
    """`client`: aiokafka's network client; `topic` was there when it was looked for. Raises by its own code what the
    broker refuses (TopicForbidden, TopicUnknown); a broker that does not answer, or a leader that is being elected, is
    nobody's refusal."""
    try:
        async with asyncio.timeout(within_s):
            await _ask(client, topic, within_s)
    except (TimeoutError, KafkaError, OSError) as error:
        refused = of_kafka(error)
        if refused is not None:
            raise refused from error


async def _ask(client: Any, topic: str, within_s: float) -> None:
    numbers = await client._wait_on_metadata(topic)  # aiokafka has no other word for what it does before it publishes
    number = min(numbers)
    leader = client.cluster.leader_for_partition(TopicPartition(topic, number))
    if leader is None or leader == -1:
        return
    request = ProduceRequest(None, ALL_REPLICAS, int(within_s * 1000), [(topic, [(number, NOTHING)])])
    answer = await client.send(leader, request)
    for name, partitions in answer.topics:
        for _, code, *_ in partitions:
            refused = of_kafka(for_code(code)(name)) if code else None
            if refused is not None:
                raise type(refused)(topic=name, **refused.fields)
