"""Groups on Kafka, by looking only: committed offsets against the ends of the topic, and who is a member."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, for_code

from consumer.broker.groups import GroupReport
from consumer.broker.kafka.causes import REFUSALS, broker_error, why_unreachable
from consumer.broker.kafka.connection import KafkaConnection, end
from consumer.broker.kafka.topics import ADMIN_TIMEOUT_S
from consumer.errors import BrokerUnavailable

OLDEST_WITHIN_S = 3.0
COORDINATOR_TRIES = 10
COORDINATOR_EVERY_S = 0.3


async def inspect_groups(connection: KafkaConnection, groups: Mapping[str, str]) -> list[GroupReport]:
    """Group to topic; a topic that is not there is left out. Raises BrokerUnavailable and what the broker refuses
    (GroupForbidden, TopicForbidden, …)."""
    admin = AIOKafkaAdminClient(**connection.options(), request_timeout_ms=int(ADMIN_TIMEOUT_S * 1000))
    reader = AIOKafkaConsumer(**connection.options(), group_id=None, enable_auto_commit=False)
    try:
        async with asyncio.timeout(ADMIN_TIMEOUT_S):
            await admin.start()
            await reader.start()
            there = set(await admin.list_topics())
            return [await _group(admin, reader, group, topic) for group, topic in groups.items() if topic in there]
    except TimeoutError as error:
        raise BrokerUnavailable("the broker did not tell of the groups in time", within_s=ADMIN_TIMEOUT_S) from error
    except REFUSALS as error:
        raise await why_unreachable(connection) or broker_error(
            error, "the broker did not tell of the groups"
        ) from error
    finally:
        await end(reader, 2.0)
        await end(admin, 2.0)


async def _group(admin: Any, reader: Any, group: str, topic: str) -> GroupReport:
    [described] = await admin.describe_topics([topic])
    spots = [TopicPartition(topic, part["partition"]) for part in described["partitions"]]
    clients, committed = await _coordinated(admin, group, spots)
    begins, ends = await reader.beginning_offsets(spots), await reader.end_offsets(spots)
    stands = {spot: found.offset for spot, found in committed.items() if found.offset >= 0}
    behind = {spot: min(max(stands.get(spot, 0), begins[spot]), ends[spot]) for spot in spots}
    waiting = {spot: offset for spot, offset in behind.items() if offset < ends[spot]}
    return GroupReport(
        group=group,
        topic=topic,
        members=len(clients),
        clients=clients,
        records=sum(ends[spot] - offset for spot, offset in waiting.items()),
        oldest_at=await _oldest(reader, waiting),
        beyond=any(offset > ends[spot] for spot, offset in stands.items()),
        lost=sum(max(0, begins[spot] - offset) for spot, offset in stands.items()),
        ends=tuple(ends[spot] for spot in sorted(spots)),
    )


async def _coordinated(
    admin: Any, group: str, spots: Sequence[TopicPartition]
) -> tuple[tuple[str, ...], Mapping[Any, Any]]:
    """Who is a member, and what is committed. A cluster that never had a group makes a coordinator first."""
    for _ in range(COORDINATOR_TRIES):
        try:
            clients = _clients(await admin.describe_consumer_groups([group]), group)
            return clients, await admin.list_consumer_group_offsets(group, partitions=list(spots))
        except GroupCoordinatorNotAvailableError:
            await asyncio.sleep(COORDINATOR_EVERY_S)
    return (), {}


def _clients(responses: Sequence[Any], group: str) -> tuple[str, ...]:
    for response in responses:
        for described in response.groups:
            code, name, members = described[0], described[1], described[5]
            if name == group:
                if code:
                    raise for_code(code)
                return tuple(sorted(_client_of(member) for member in members))
    return ()


def _client_of(member: Sequence[Any]) -> str:
    """Id, then from one version on the static id, then the client's id, host, and two blobs."""
    return str(member[-4])


async def _oldest(reader: Any, waiting: Mapping[TopicPartition, int]) -> datetime | None:
    """When the oldest waiting record was stored, as far as it can be read in OLDEST_WITHIN_S."""
    if not waiting:
        return None
    reader.assign(list(waiting))
    for spot, offset in waiting.items():
        reader.seek(spot, offset)
    unread, oldest = set(waiting), None
    until = time.monotonic() + OLDEST_WITHIN_S
    while unread and time.monotonic() < until:
        for spot, records in (await reader.getmany(timeout_ms=200, max_records=len(waiting))).items():
            if spot in unread and records:
                unread.discard(spot)
                at = datetime.fromtimestamp(records[0].timestamp / 1000, UTC) if records[0].timestamp > 0 else None
                oldest = min(filter(None, (oldest, at)), default=None)
    return oldest
