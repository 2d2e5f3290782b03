"""Topics on Kafka: how they must be configured so that no record is lost, made or checked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from consumer.broker.base import TopicConfig
from consumer.broker.kafka.causes import REFUSALS, broker_error, why_unreachable
from consumer.broker.kafka.connection import KafkaConnection, end
from consumer.causes import of_kafka
from consumer.errors import BrokerError, BrokerUnavailable, TopicMisconfigured
from consumer.telemetry.logs import Condition

DEFAULT_PARTITIONS = 12
REPLICAS = 3
MAX_BATCH_BYTES = 512 * 1024
RECORD_OVERHEAD_BYTES = 4 * 1024
ADMIN_TIMEOUT_S = 20.0
VISIBLE_WITHIN_S = 20.0
_TOPIC_EXISTS = 36
_AS_SENT = "producer"
_READABLE = (_AS_SENT, "uncompressed", "gzip")
"""What a topic may compress its records with: aiokafka reads the others by a package that it does not bring."""


@dataclass(frozen=True)
class FoundTopic:
    """A topic as it is. `settings` is None when we may not read them. `leaderless`: of how many partitions nobody leads
    now."""

    partitions: int
    replicas: int
    settings: Mapping[str, str] | None
    leaderless: int = 0

    @property
    def max_message_bytes(self) -> int:
        """The largest batch the topic takes; the broker's default when it is not known."""
        return int((self.settings or {}).get("max.message.bytes", 1_048_588))


def settings_for(topic: TopicConfig, replicas: int) -> dict[str, str]:
    """The configuration of a new topic: nothing is compacted away or cut by size, an acknowledged record is on two
    replicas where there are three, a replica that missed records never becomes leader, how long a record is kept goes
    by the broker's clock, and no record is compressed so that we cannot read it."""
    return {
        "cleanup.policy": "delete",
        "retention.ms": "-1" if topic.retention_s is None else str(int(topic.retention_s * 1000)),
        "retention.bytes": "-1",
        "max.message.bytes": str(needed_message_bytes(topic)),
        "min.insync.replicas": "2" if replicas >= REPLICAS else "1",
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "LogAppendTime",
        "compression.type": _AS_SENT,
    }


def needed_message_bytes(topic: TopicConfig) -> int:
    """What `max.message.bytes` must be at least: it limits a whole batch, not a record."""
    return max(topic.max_record_bytes, MAX_BATCH_BYTES) + RECORD_OVERHEAD_BYTES


def needed_replicas(brokers: int) -> int:
    """How many copies a record has at least on a cluster of so many brokers."""
    return min(REPLICAS, brokers)


def replicas_of_new(topic: TopicConfig, brokers: int) -> int:
    """How many copies a topic is made with: what it asks for, also while too few brokers are there, which Kafka then
    refuses: a topic keeps the copies it was made with."""
    return max(topic.copies, needed_replicas(brokers))


def problems(topic: TopicConfig, found: FoundTopic, brokers: int) -> list[str]:
    """What is wrong with an existing topic, one line each; empty when no record can be lost. Pure."""
    wrong = []
    if found.replicas < needed_replicas(brokers):
        wrong.append(f"replication factor {found.replicas}, needed {needed_replicas(brokers)}")
    settings = found.settings or {}
    return wrong + [
        f"{name}={settings.get(name, 'unset')}, needed {needed}" for name, needed in corrections(topic, found).items()
    ]


def corrections(topic: TopicConfig, found: FoundTopic) -> dict[str, str]:
    """The settings of an existing topic that could lose records, with what they must be. Pure."""
    if found.settings is None:
        return {}
    needed: dict[str, str] = {}
    if "compact" in found.settings.get("cleanup.policy", "delete"):
        needed["cleanup.policy"] = "delete"
    retention_ms = int(found.settings.get("retention.ms", "-1"))
    if retention_ms >= 0 and (topic.retention_s is None or retention_ms < topic.retention_s * 1000):
        needed["retention.ms"] = "-1" if topic.retention_s is None else str(int(topic.retention_s * 1000))
    if int(found.settings.get("retention.bytes", "-1")) >= 0:
        needed["retention.bytes"] = "-1"
    if found.max_message_bytes < needed_message_bytes(topic):
        needed["max.message.bytes"] = str(needed_message_bytes(topic))
    if found.replicas >= REPLICAS and int(found.settings.get("min.insync.replicas", "1")) < 2:
        needed["min.insync.replicas"] = "2"
    if found.settings.get("unclean.leader.election.enable", "false") == "true":
        needed["unclean.leader.election.enable"] = "false"
    if found.settings.get("compression.type", _AS_SENT) not in _READABLE:
        needed["compression.type"] = _AS_SENT
    return needed


def _new(topic: TopicConfig, replicas: int) -> NewTopic:
    return NewTopic(
        name=topic.name,
        num_partitions=topic.partitions or DEFAULT_PARTITIONS,
        replication_factor=replicas,
        topic_configs=settings_for(topic, replicas),
    )


class KafkaTopics:
    """Creates, checks and describes topics. Every call has its own admin client and is bounded in time."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._unread: dict[str, Condition] = {}

    async def ensure(self, topics: Sequence[TopicConfig]) -> dict[str, FoundTopic]:
        """Create what is missing, check what is there. Raises TopicMisconfigured naming every problem."""
        admin = await self._admin()
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S + VISIBLE_WITHIN_S):
                await admin.start()
                brokers = len((await admin.describe_cluster())["brokers"])
                existing = set(await admin.list_topics())
                missing = [topic for topic in topics if topic.name not in existing]
                await self._create(admin, missing, brokers)
                found = await self._visible(
                    admin, [topic.name for topic in topics], new={topic.name for topic in missing}
                )
        except TimeoutError as error:
            raise BrokerUnavailable("the topics could not be made or checked in time") from error
        except REFUSALS as error:
            known = await why_unreachable(self._connection)
            raise known or broker_error(error, "the topics could not be made or checked") from error
        finally:
            await end(admin, 2.0)
        wrong = [f"{topic.name}: {line}" for topic in topics for line in problems(topic, found[topic.name], brokers)]
        if wrong:
            raise TopicMisconfigured("; ".join(wrong))
        return found

    async def describe(self, name: str) -> FoundTopic | None:
        """The topic as it is, leaders or not, None when there is none. Asking never creates it."""
        admin = await self._admin()
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S):
                await admin.start()
                if name not in await admin.list_topics():
                    return None
                return (await self._describe(admin, [name])).get(name)
        except TimeoutError as error:
            raise BrokerUnavailable("the broker did not describe the topic in time", topic=name) from error
        except REFUSALS as error:
            raise BrokerUnavailable(
                "the broker did not describe the topic", topic=name, reason=type(error).__name__
            ) from error
        finally:
            await end(admin, 2.0)

    async def _admin(self) -> AIOKafkaAdminClient:
        reached = await self._connection.reached()
        return AIOKafkaAdminClient(**reached.options(), request_timeout_ms=int(ADMIN_TIMEOUT_S * 1000))

    async def _create(self, admin: AIOKafkaAdminClient, topics: Sequence[TopicConfig], brokers: int) -> None:
        if not topics:
            return
        response = await admin.create_topics([_new(topic, replicas_of_new(topic, brokers)) for topic in topics])
        for name, code, *message in response.topic_errors:
            if code not in (0, _TOPIC_EXISTS):  # another process may have been faster
                reason = message[0] if message and message[0] else for_code(code).__name__
                known = of_kafka(for_code(code)())
                refusal = BrokerError if known is None else type(known)
                raise refusal("the topic could not be created", topic=name, reason=reason)

    async def _visible(
        self, admin: AIOKafkaAdminClient, names: Sequence[str], *, new: Set[str]
    ) -> dict[str, FoundTopic]:
        """Wait until every topic is there, and every partition of the new ones has its first leader. One that has lost
        its leader keeps nobody from the others."""
        while True:
            found = await self._describe(admin, names)
            if len(found) == len(set(names)) and not any(found[name].leaderless for name in new):
                return found
            await asyncio.sleep(0.1)

    async def _describe(self, admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, FoundTopic]:
        if not names:
            return {}
        described = {
            topic["topic"]: topic["partitions"]
            for topic in await admin.describe_topics(list(names))
            if topic["error_code"] == 0
        }
        settings: dict[str, dict[str, str]] = {}
        if described:
            for response in await admin.describe_configs(
                [ConfigResource(ConfigResourceType.TOPIC, name) for name in described]
            ):
                for code, _, _, name, entries, *_ in response.resources:
                    unread = self._unread.setdefault(name, Condition("topic_settings_not_read", topic=name))
                    if code == 0:
                        settings[name] = {entry[0]: entry[1] for entry in entries}
                        unread.over()
                    else:
                        unread.lasts(for_code(code).__name__)
        return {
            name: FoundTopic(
                partitions=len(parts),
                replicas=min(len(part["replicas"]) for part in parts),
                settings=settings.get(name),
                leaderless=sum(part["leader"] < 0 for part in parts),
            )
            for name, parts in described.items()
            if parts
        }
