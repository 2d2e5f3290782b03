"""The broker: an append-only log with topics, partitions and groups, on Apache Kafka or in one SQLite file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consumer.broker.base import (
    AssignmentListener,
    Broker,
    Lag,
    Message,
    Partition,
    Record,
    Subscription,
    TopicConfig,
    TopicReport,
)
from consumer.broker.embedded.broker import EmbeddedBroker
from consumer.broker.groups import GroupReport
from consumer.broker.kafka.connection import KafkaSecurity
from consumer.clock import Clock
from consumer.errors import BrokerUrlInvalid

__all__ = [
    "AssignmentListener",
    "Broker",
    "EmbeddedBroker",
    "GroupReport",
    "KafkaBroker",
    "KafkaSecurity",
    "Lag",
    "Message",
    "Partition",
    "Record",
    "Subscription",
    "TopicConfig",
    "TopicReport",
    "open_broker",
]

if TYPE_CHECKING:
    from consumer.broker.kafka.broker import KafkaBroker


def __getattr__(name: str) -> Any:
    """`KafkaBroker`, which brings Kafka's client: nobody waits for it who has no Kafka."""
    if name != "KafkaBroker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from consumer.broker.kafka.broker import KafkaBroker

    return KafkaBroker


_SERVER = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})\Z")


def open_broker(
    url: str, *, security: KafkaSecurity | None = None, clock: Clock | None = None, client_id: str = "consumer"
) -> Broker:
    """The broker at `embedded:PATH` or `kafka://host:port,host:port`, not started. Raises BrokerUrlInvalid."""
    kind, _, rest = url.partition(":")
    if kind == "embedded":
        if not rest:
            raise BrokerUrlInvalid("the embedded log needs a path, as in embedded:data/log.db")
        return EmbeddedBroker(Path(rest), clock=clock)
    if kind == "kafka" and rest.startswith("//"):
        servers = [server.strip() for server in rest[2:].rstrip("/").split(",")]
        for server in servers:
            found = _SERVER.match(server)
            if found is None or not 0 < int(found.group(2)) < 65_536:
                raise BrokerUrlInvalid(f"{server!r} is not host:port, as in kafka://host:9092,host:9092")
        from consumer.broker.kafka.broker import KafkaBroker

        return KafkaBroker(servers, security=security, clock=clock, client_id=client_id)
    raise BrokerUrlInvalid()
