"""Causes: what Kafka, or the way to it, refused, as our error. aiokafka says of every failed start only that it could
not bootstrap; so each server is asked once more, and the answer is the cause."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest

from consumer.broker.kafka.connection import KafkaConnection, is_reached
from consumer.causes import of_kafka
from consumer.errors import BrokerError, BrokerUnavailable, LogNotReplicated, PartitionAway

ASK_WITHIN_S = 3.0
ALL_REPLICAS: Final = -1
NOTHING: Final = b""
REFUSALS: Final = (KafkaError, OSError, NotImplementedError)
"""What aiokafka raises of a broker; the last one where it has no version of a request in common with it."""
NOT_OF_A_CONNECTION = ("bootstrap_servers", "metadata_max_age_ms")


def broker_error(error: BaseException, message: str, **fields: Any) -> BrokerError:
    """Our error for what aiokafka raised: by the table of causes, else BrokerUnavailable with this message."""
    known = of_kafka(error)
    if known is None:
        return BrokerUnavailable(message, **fields, reason=type(error).__name__)
    return type(known)(**{**fields, **known.fields})


def of_partition(error: BrokerError, cluster: Any, topic: str, number: int) -> BrokerError:
    """The same as PartitionAway where this partition has no leader, or lost half of its replicas, while another of its
    topic is well, as far as aiokafka's `cluster` knows; else as it is. What names another cause stays it."""
    if type(error) not in (BrokerUnavailable, LogNotReplicated):
        return error
    parts = cluster._partitions.get(topic, {})  # aiokafka has no other word for who is in sync
    if number not in parts or _is_well(parts[number]) or not any(map(_is_well, parts.values())):
        return error
    return PartitionAway(error.message, **{**error.fields, "topic": topic, "partition": number})


def _is_well(partition: Any) -> bool:
    return partition.leader != -1 and len(partition.isr) * 2 > len(partition.replicas)


async def why_unreachable(connection: KafkaConnection) -> BrokerError | None:
    """What the servers answer to one who connects: a refused login, a certificate, brokers at addresses that lead
    nowhere from here; None when one takes us, or when nobody answers in ASK_WITHIN_S."""
    options = {name: value for name, value in connection.options().items() if name not in NOT_OF_A_CONNECTION}
    for server in connection.servers:
        host, _, port = server.rpartition(":")
        try:
            async with asyncio.timeout(ASK_WITHIN_S):
                found = await create_conn(
                    host.strip("[]"), int(port), request_timeout_ms=int(ASK_WITHIN_S * 1000), **options
                )
                try:
                    return await _leads_nowhere(found)
                finally:
                    found.close()
        except (*REFUSALS, TimeoutError) as error:
            known = of_kafka(error)
            if known is not None:
                return type(known)(servers=server, **known.fields)
    return None


async def _leads_nowhere(connected: Any) -> BrokerError | None:
    """Where a server sends us on to, as clients of Kafka have to go, when none of it can be reached from here."""
    told = await connected.send(MetadataRequest([]))
    named = [f"{host}:{port}" for _, host, port, *_ in told.brokers]
    if not named or any(await asyncio.gather(*map(is_reached, named))):
        return None
    return BrokerUnavailable(
        f"the broker answers and sends us on to {', '.join(named)}, where nobody is: see its advertised.listeners"
    )


async def probe(client: Any, topic: str, within_s: float) -> None:
    """Whether the topic takes records from us, asked without leaving one there: a batch without a record is refused as
    invalid by a broker that would have taken one, and as forbidden or unknown by one that would not. Disks and replicas
    it does not ask.

    `client`: aiokafka's network client; `topic` was there when it was looked for. Raises by its own code what the
    broker refuses (TopicForbidden, TopicUnknown); a broker that does not answer, or a leader that is being elected, is
    nobody's refusal."""
    try:
        async with asyncio.timeout(within_s):
            await _ask(client, topic, within_s)
    except (*REFUSALS, TimeoutError) as error:
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
                raise type(refused)(**{**refused.fields, "topic": name})
