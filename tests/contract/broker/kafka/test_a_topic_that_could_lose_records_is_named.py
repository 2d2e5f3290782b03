"""A topic's settings are checked before it is used: each that could lose records is named. Pure."""

from __future__ import annotations

import pytest

from consumer.broker import TopicConfig
from consumer.broker.kafka.topics import FoundTopic, needed_message_bytes, problems, settings_for

WEEK = TopicConfig(name="t", partitions=3, retention_s=604_800, max_record_bytes=1_000_000)


def test_a_topic_made_by_us_has_no_problem() -> None:
    for brokers in (1, 2, 3, 5):
        replicas = min(3, brokers)
        assert problems(WEEK, FoundTopic(3, replicas, settings_for(WEEK, replicas)), brokers) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "3600000"),
        ("retention.bytes", "1000000"),
        ("max.message.bytes", "1000"),
        ("min.insync.replicas", "1"),
        ("unclean.leader.election.enable", "true"),
    ],
)
def test_a_setting_that_could_lose_records_is_named(name: str, value: str) -> None:
    settings = settings_for(WEEK, 3) | {name: value}
    found = problems(WEEK, FoundTopic(3, 3, settings), brokers=3)
    assert len(found) == 1
    assert name in found[0]


def test_too_few_replicas_and_a_limited_retention_of_an_endless_topic_are_named() -> None:
    assert "replication factor 1" in problems(WEEK, FoundTopic(3, 1, settings_for(WEEK, 1)), brokers=3)[0]
    endless = TopicConfig(name="t", partitions=3, retention_s=None, max_record_bytes=1_000)
    assert "retention.ms" in problems(endless, FoundTopic(3, 1, settings_for(WEEK, 1)), brokers=1)[0]
    assert needed_message_bytes(endless) > 512 * 1024
