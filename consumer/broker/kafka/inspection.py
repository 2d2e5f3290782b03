"""Inspection: how topics on Kafka stand, by looking only: nothing is made, altered, published or committed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from consumer.broker.base import TopicConfig, TopicReport
from consumer.broker.kafka.causes import REFUSALS, broker_error, why_unreachable
from consumer.broker.kafka.connection import KafkaConnection, end
from consumer.broker.kafka.header_names import read_any_names
from consumer.broker.kafka.topics import (
    ADMIN_TIMEOUT_S,
    DEFAULT_PARTITIONS,
    FoundTopic,
    corrections,
    needed_replicas,
    problems,
    replicas_of_new,
    settings_for,
)
from consumer.errors import BrokerUnavailable

NEWEST_WITHIN_S = 3.0
APPEND_TIME = 1

DISK_FAILED = "each broker that has it answers: if this lasts, a disk there failed or is full; see the broker's own log"
"""As far as Kafka tells it: nobody outside is told of a disk."""

Described = Mapping[str, Any]


async def inspect(connection: KafkaConnection, topics: Sequence[TopicConfig]) -> list[TopicReport]:
    """How each topic stands. Raises BrokerUnavailable when the cluster does not answer in time."""
    reached = await connection.reached()
    admin = AIOKafkaAdminClient(**reached.options(), request_timeout_ms=int(ADMIN_TIMEOUT_S * 1000))
    try:
        async with asyncio.timeout(ADMIN_TIMEOUT_S):
            await admin.start()
            brokers = {int(one["node_id"]) for one in (await admin.describe_cluster())["brokers"]}
            there = set(await admin.list_topics()) & {topic.name for topic in topics}
            described = {one["topic"]: one for one in await admin.describe_topics(sorted(there))} if there else {}
            settings = await _settings(admin, sorted(there))
    except TimeoutError as error:
        raise BrokerUnavailable("the broker did not answer in time", within_s=ADMIN_TIMEOUT_S) from error
    except REFUSALS as error:
        raise await why_unreachable(connection) or broker_error(error, "the broker does not answer") from error
    finally:
        await end(admin, 2.0)
    newest = await _newest(reached, described)
    command = _Command(connection)
    return [
        _report(topic, described.get(topic.name), settings.get(topic.name), brokers, newest.get(topic.name), command)
        for topic in topics
    ]


class _Command:
    """Kafka's own command-line tools, aimed at this cluster."""

    def __init__(self, connection: KafkaConnection) -> None:
        secured = connection.security.security_protocol != "PLAINTEXT"
        self._where = f"--bootstrap-server {','.join(connection.servers)}"
        self._where += " --command-config client.properties" if secured else ""

    def create(self, topic: TopicConfig, brokers: int) -> str:
        replicas = replicas_of_new(topic, brokers)
        configs = " ".join(f"--config {name}={value}" for name, value in settings_for(topic, replicas).items())
        return (
            f"kafka-topics.sh {self._where} --create --topic {topic.name} "
            f"--partitions {topic.partitions or DEFAULT_PARTITIONS} --replication-factor {replicas} {configs}"
        )

    def alter(self, topic: TopicConfig, settings: Mapping[str, str]) -> str:
        wanted = ",".join(f"{name}={value}" for name, value in settings.items())
        return (
            f"kafka-configs.sh {self._where} --alter --entity-type topics --entity-name {topic.name} "
            f"--add-config {wanted}"
        )

    def partitions(self, topic: TopicConfig) -> str:
        return f"kafka-topics.sh {self._where} --alter --topic {topic.name} --partitions {topic.partitions}"

    def reassign(self) -> str:
        return f"kafka-reassign-partitions.sh {self._where} --reassignment-json-file FILE --execute"

    def show(self, which: str) -> str:
        return f"kafka-topics.sh {self._where} --describe --{which}-partitions"


def _numbers(parts: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(part["partition"]) for part in parts)


def _report(
    topic: TopicConfig,
    described: Described | None,
    settings: Mapping[str, str] | None,
    brokers: Collection[int],
    newest_at: datetime | None,
    command: _Command,
) -> TopicReport:
    """What is to be said of one topic. Pure."""
    if described is None or described["error_code"] or not described["partitions"]:
        return TopicReport(name=topic.name, partitions=None, remedies=(command.create(topic, len(brokers)),))
    parts = described["partitions"]
    found = FoundTopic(len(parts), min(len(part["replicas"]) for part in parts), settings)
    alter = corrections(topic, found)
    if settings is not None and not _tells_age(settings):
        alter["message.timestamp.type"] = "LogAppendTime"
    headless = _without_leader(parts, brokers)
    lacking = _without_copies(parts, found, settings, brokers)
    thin = [] if headless or lacking else _with_none_to_spare(parts, settings, brokers)
    remedies = {
        command.alter(topic, alter): bool(alter),
        command.reassign(): found.replicas < needed_replicas(len(brokers)),
        command.show("unavailable"): bool(headless),
        command.show("under-min-isr"): bool(lacking),
        command.show("under-replicated"): bool(thin),
        command.partitions(topic): found.partitions < (topic.partitions or 0),
    }
    return TopicReport(
        name=topic.name,
        partitions=found.partitions,
        wrong=(*problems(topic, found, len(brokers)), *headless, *lacking),
        thin=tuple(thin),
        odd=tuple(_odd(topic, found, settings)),
        remedies=tuple(remedy for remedy, is_needed in remedies.items() if is_needed),
        newest_at=newest_at,
    )


def _without_leader(parts: Sequence[Described], brokers: Collection[int]) -> list[str]:
    """Partitions that nobody leads, and which of them not for want of a broker."""
    headless = sorted((part for part in parts if part["leader"] < 0), key=lambda part: int(part["partition"]))
    wrong = [f"no leader for partition {_numbers(headless)}{_away(headless, brokers)}"] if headless else []
    if lost := [part for part in headless if brokers and set(part["replicas"]) <= set(brokers)]:
        wrong.append(f"partition {_numbers(lost)}: {DISK_FAILED}")
    return wrong


def _without_copies(
    parts: Sequence[Described], found: FoundTopic, settings: Mapping[str, str] | None, brokers: Collection[int]
) -> list[str]:
    """Too few replicas for a record to be taken."""
    insync = min(len(part["isr"]) for part in parts)
    needed = int((settings or {}).get("min.insync.replicas", "1"))
    if insync >= needed:
        return []
    harm = "no record is taken" if needed <= found.replicas else "not every version of Kafka takes a record then"
    return [f"{insync} replica(s) in sync where min.insync.replicas={needed}: {harm}{_away(parts, brokers)}"]


def _with_none_to_spare(
    parts: Sequence[Described], settings: Mapping[str, str] | None, brokers: Collection[int]
) -> list[str]:
    """Records are taken, and are not when one replica more is lost."""
    needed = int((settings or {}).get("min.insync.replicas", "1"))
    few = [part for part in parts if len(part["isr"]) == needed < len(part["replicas"])]
    if not few:
        return []
    most = max(len(part["replicas"]) for part in few)
    text = f"{needed} of {most} replicas in sync where min.insync.replicas={needed}"
    return [f"{text}: one more lost, and no record is taken{_away(few, brokers)}"]


def _away(parts: Sequence[Described], brokers: Collection[int]) -> str:
    """Which brokers are to have them, and are not there."""
    away = sorted({broker for part in parts for broker in part["replicas"]} - set(brokers)) if brokers else []
    return f"; away: broker {', '.join(map(str, away))}" if away else ""


def _tells_age(settings: Mapping[str, str]) -> bool:
    return settings.get("message.timestamp.type", "CreateTime") == "LogAppendTime"


def _odd(topic: TopicConfig, found: FoundTopic, settings: Mapping[str, str] | None) -> Iterator[str]:
    """What loses nothing, and should be known."""
    if settings is None:
        yield "its settings may not be read: they are not checked"
    elif not _tells_age(settings):
        yield "message.timestamp.type=CreateTime: the age of records is not known"
    count = f"{found.partitions} partitions, {topic.partitions} configured"
    if topic.partitions and found.partitions < topic.partitions:
        yield f"{count}; more send keys elsewhere: drain first"
    elif topic.partitions and found.partitions > topic.partitions:
        yield f"{count}; a topic never loses partitions"


async def _settings(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """By topic; without those whose settings may not be read."""
    found: dict[str, dict[str, str]] = {}
    if names:
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        for response in await admin.describe_configs(resources):
            for code, _, _, name, entries, *_ in response.resources:
                if code == 0:
                    found[name] = {entry[0]: entry[1] for entry in entries}
    return found


async def _newest(connection: KafkaConnection, described: Mapping[str, Described]) -> dict[str, datetime]:
    """By topic: when the broker stored the newest record, as far as that can be read in NEWEST_WITHIN_S. A reader
    without a group leaves no trace."""
    spots = [
        TopicPartition(name, part["partition"])
        for name, topic in described.items()
        for part in topic["partitions"]
        if part["leader"] >= 0
    ]
    newest: dict[str, datetime] = {}
    if not spots:
        return newest
    reader = AIOKafkaConsumer(**connection.options(), group_id=None, enable_auto_commit=False)
    read_any_names(reader._client)
    try:
        async with asyncio.timeout(NEWEST_WITHIN_S):
            await reader.start()
            reader.assign(spots)
            waiting = await _seek_last(reader, spots)
            while waiting:
                found = await reader.getmany(timeout_ms=200)
                waiting -= found.keys()
                for record in chain.from_iterable(found.values()):
                    if record.timestamp_type == APPEND_TIME:
                        at = datetime.fromtimestamp(record.timestamp / 1000, UTC)
                        newest[record.topic] = max(at, newest.get(record.topic, at))
    except (TimeoutError, KafkaError, OSError):
        return newest  # what was read is worth telling; the topics themselves have been looked at
    finally:
        await end(reader, 2.0)
    return newest


async def _seek_last(reader: AIOKafkaConsumer, spots: Sequence[TopicPartition]) -> set[TopicPartition]:
    """Go to the last record of each partition; returns those that hold any."""
    begins, ends = await reader.beginning_offsets(spots), await reader.end_offsets(spots)
    for spot in spots:
        reader.seek(spot, max(begins[spot], ends[spot] - 1))
    return {spot for spot in spots if ends[spot] > begins[spot]}
