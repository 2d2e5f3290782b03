"""Groups on Kafka, by looking only: committed offsets against the ends of the topic, who is a member, and which topic
it is: aiokafka asks for metadata in a version that knows no topic ids yet, so the one question is spelled out here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupIdNotFound,
    GroupLoadInProgressError,
    IncompatibleBrokerVersion,
    NotCoordinatorForGroupError,
    UnsupportedVersionError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from consumer.broker.groups import GroupReport
from consumer.broker.kafka.causes import REFUSALS, broker_error, why_unreachable
from consumer.broker.kafka.connection import KafkaConnection, end
from consumer.broker.kafka.header_names import read_any_names
from consumer.broker.kafka.progress import stored_at
from consumer.broker.kafka.topics import ADMIN_TIMEOUT_S
from consumer.errors import BrokerUnavailable

OLDEST_WITHIN_S = 3.0
COORDINATOR_TRIES = 10
COORDINATOR_EVERY_S = 0.3
_METADATA: Final = 3
_NEWER_GROUPS: Final = 69
"""Of groups by Kafka's newer protocol (KIP-848), which a member that speaks it makes of a group: ours stay in it, and
who asks for a group as before hears of no member."""
_WITH_IDS: Final = 10
_NO_SUCH_GROUP: Final = (GroupIdNotFound.errno, UnsupportedVersionError.errno)
_TEXT, _TAGS, _ID = CompactString("utf-8"), ("tags", TaggedFields), (("id_high", Int64), ("id_low", Int64))


class _Metadata(Response):  # type: ignore[misc]  # aiokafka has no types
    """Metadata, version 10."""

    API_KEY = _METADATA
    API_VERSION = _WITH_IDS
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS)),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        ("topics", CompactArray(
            ("error_code", Int16), ("name", _TEXT), *_ID, ("is_internal", Boolean),
            ("partitions", CompactArray(
                ("error_code", Int16), ("partition", Int32), ("leader", Int32), ("leader_epoch", Int32),
                ("replicas", CompactArray(Int32)), ("in_sync", CompactArray(Int32)), ("offline", CompactArray(Int32)),
                _TAGS,
            )),
            ("operations", Int32), _TAGS,
        )),
        ("operations", Int32),
        _TAGS,
    )  # fmt: skip


class _AskMetadata(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    """Metadata, version 10: of topics by name."""

    FLEXIBLE_VERSION = True
    API_KEY = _METADATA
    API_VERSION = _WITH_IDS
    RESPONSE_TYPE = _Metadata
    SCHEMA = Schema(
        ("topics", CompactArray(*_ID, ("name", _TEXT), _TAGS)),
        ("creates", Boolean),
        ("cluster_operations", Boolean),
        ("topic_operations", Boolean),
        _TAGS,
    )


class _Groups(Response):  # type: ignore[misc]  # aiokafka has no types
    """ConsumerGroupDescribe, version 0."""

    API_KEY = _NEWER_GROUPS
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("groups", CompactArray(
            ("error_code", Int16), ("error", _TEXT), ("group", _TEXT), ("state", _TEXT), ("epoch", Int32),
            ("assignment_epoch", Int32), ("assignor", _TEXT),
            ("members", CompactArray(
                ("member", _TEXT), ("instance", _TEXT), ("rack", _TEXT), ("epoch", Int32), ("client", _TEXT),
                ("host", _TEXT), ("topics", CompactArray(_TEXT)), ("regex", _TEXT),
                ("has", CompactArray(*_ID, ("name", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)),
                ("has_tags", TaggedFields),
                ("gets", CompactArray(*_ID, ("name", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)),
                ("gets_tags", TaggedFields), _TAGS,
            )),
            ("operations", Int32), _TAGS,
        )),
        _TAGS,
    )  # fmt: skip


class _AskGroups(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    """ConsumerGroupDescribe, version 0."""

    FLEXIBLE_VERSION = True
    API_KEY = _NEWER_GROUPS
    API_VERSION = 0
    RESPONSE_TYPE = _Groups
    SCHEMA = Schema(("groups", CompactArray(_TEXT)), ("operations", Boolean), _TAGS)


class _NewerGroup(Request[_AskGroups]):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = _NEWER_GROUPS

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[_AskGroups]) -> _AskGroups:
        return request_struct_class([self._group], False, {})


class _TopicsByName(Request[_AskMetadata]):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = _METADATA

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def build(self, request_struct_class: type[_AskMetadata]) -> _AskMetadata:
        return request_struct_class([(0, 0, name, {}) for name in self._names], False, False, False, {})


async def inspect_groups(connection: KafkaConnection, groups: Mapping[str, str]) -> list[GroupReport]:
    """Group to topic; a topic that is not there is left out. Raises BrokerUnavailable and what the broker refuses
    (GroupForbidden, TopicForbidden, …)."""
    reached = await connection.reached()
    admin = AIOKafkaAdminClient(**reached.options(), request_timeout_ms=int(ADMIN_TIMEOUT_S * 1000))
    reader = AIOKafkaConsumer(**reached.options(), group_id=None, enable_auto_commit=False)
    read_any_names(reader._client)
    try:
        async with asyncio.timeout(ADMIN_TIMEOUT_S):
            await admin.start()
            await reader.start()
            there = set(await admin.list_topics())
            asked = {group: topic for group, topic in groups.items() if topic in there}
            ids = await _topic_ids(admin, sorted(set(asked.values())))
            return [await _group(admin, reader, group, topic, ids.get(topic)) for group, topic in asked.items()]
    except TimeoutError as error:
        raise BrokerUnavailable("the broker did not tell of the groups in time", within_s=ADMIN_TIMEOUT_S) from error
    except REFUSALS as error:
        raise await why_unreachable(connection) or broker_error(
            error, "the broker did not tell of the groups"
        ) from error
    finally:
        await end(reader, 2.0)
        await end(admin, 2.0)


async def _topic_ids(admin: Any, names: Sequence[str]) -> dict[str, str]:
    """The id that Kafka gave each topic when it was made. Empty where the broker is too old to have any (before 2.8):
    there, a topic that was made anew shows by its ends alone."""
    if not names:
        return {}
    try:
        answer = await admin._client.send(admin._client.get_random_node(), _TopicsByName(names))
    except (IncompatibleBrokerVersion, NotImplementedError):
        return {}
    return {
        topic["name"]: str(UUID(int=(topic["id_high"] % 2**64 << 64) | topic["id_low"] % 2**64))
        for topic in answer.to_object()["topics"]
        if (topic["id_high"], topic["id_low"]) != (0, 0)
    }


async def _group(admin: Any, reader: Any, group: str, topic: str, topic_id: str | None) -> GroupReport:
    [described] = await admin.describe_topics([topic])
    spots = [TopicPartition(topic, part["partition"]) for part in described["partitions"]]
    clients, committed = await _coordinated(admin, group, spots)
    begins, ends = await reader.beginning_offsets(spots), await reader.end_offsets(spots)
    stands = {spot: found.offset for spot, found in committed.items() if found.offset >= 0}
    behind = {spot: min(max(stands.get(spot, 0), begins[spot]), ends[spot]) for spot in spots}
    waiting = {spot: offset for spot, offset in behind.items() if offset < ends[spot]}
    oldest_at, marks = await _oldest(reader, waiting, ends)
    return GroupReport(
        group=group,
        topic=topic,
        topic_id=topic_id,
        members=len(clients),
        clients=clients,
        records=sum(ends[spot] - offset for spot, offset in waiting.items() if spot not in marks),
        oldest_at=oldest_at,
        beyond=any(offset > ends[spot] for spot, offset in stands.items()),
        lost=sum(max(0, begins[spot] - offset) for spot, offset in stands.items()),
        ends=tuple(ends[spot] for spot in sorted(spots)),
    )


async def _coordinated(
    admin: Any, group: str, spots: Sequence[TopicPartition]
) -> tuple[tuple[str, ...], Mapping[Any, Any]]:
    """Who is a member, and what is committed. A cluster that never had a group makes a coordinator first, and one that
    moves is asked again."""
    for left in reversed(range(COORDINATOR_TRIES)):
        try:
            clients = _clients(await admin.describe_consumer_groups([group]), group)
            clients = clients or await _newer_clients(admin, group)
            return clients, await admin.list_consumer_group_offsets(group, partitions=list(spots))
        except GroupCoordinatorNotAvailableError:
            pass
        except (NotCoordinatorForGroupError, GroupLoadInProgressError):
            if not left:
                raise
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


async def _newer_clients(admin: Any, group: str) -> tuple[str, ...]:
    """Those of a group by the newer protocol; nobody, where it is none, or the broker has no such groups."""
    try:
        answer = await admin._send_request(_NewerGroup(group), await admin.find_coordinator(group))
    except (IncompatibleBrokerVersion, NotImplementedError):
        return ()
    [found] = answer.to_object()["groups"]
    if found["error_code"] in _NO_SUCH_GROUP:
        return ()
    if found["error_code"]:
        raise for_code(found["error_code"])
    return tuple(sorted(member["client"] for member in found["members"]))


def _client_of(member: Sequence[Any]) -> str:
    """Id, then from one version on the static id, then the client's id, host, and two blobs."""
    return str(member[-4])


async def _oldest(
    reader: Any, waiting: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> tuple[datetime | None, frozenset[TopicPartition]]:
    """When the oldest waiting record was stored, and where no record waits but the mark of somebody's transaction; as
    far as it can be read in OLDEST_WITHIN_S."""
    if not waiting:
        return None, frozenset()
    reader.assign(list(waiting))
    for spot, offset in waiting.items():
        reader.seek(spot, offset)
    unread, marks, oldest = set(waiting), set[TopicPartition](), None
    until = time.monotonic() + OLDEST_WITHIN_S
    while unread and time.monotonic() < until:
        for spot, records in (await reader.getmany(timeout_ms=200, max_records=len(waiting))).items():
            if spot in unread and records:
                unread.discard(spot)
                oldest = min(filter(None, (oldest, stored_at(records[0].timestamp))), default=None)
        for spot in [*unread]:
            if await reader.position(spot) >= ends[spot]:
                unread.discard(spot)
                marks.add(spot)
    return oldest, frozenset(marks)
