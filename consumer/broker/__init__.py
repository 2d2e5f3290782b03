"""The broker: an append-only log with topics, partitions and groups, on Apache Kafka or in one SQLite file."""

from consumer.broker.base import (
    AssignmentListener,
    Broker,
    Lag,
    Message,
    Partition,
    Record,
    Subscription,
    TopicConfig,
)
from consumer.broker.embedded import EmbeddedBroker

__all__ = [
    "AssignmentListener",
    "Broker",
    "EmbeddedBroker",
    "Lag",
    "Message",
    "Partition",
    "Record",
    "Subscription",
    "TopicConfig",
]
