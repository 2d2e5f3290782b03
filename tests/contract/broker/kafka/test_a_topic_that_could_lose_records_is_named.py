"""A topic's settings are checked before it is used: each that could lose records is named. So is one that
aiokafka says it may not use, one or several. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError

from consumer.app import log_parts
from consumer.broker import TopicConfig
from consumer.broker.kafka.causes import broker_error
from consumer.broker.kafka.topics import FoundTopic, needed_message_bytes, problems, replicas_of_new, settings_for
from consumer.errors import GroupForbidden, TopicForbidden
from consumer.settings import Role, load_settings

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
        ("compression.type", "zstd"),
    ],
)
def test_a_setting_that_could_lose_records_is_named(name: str, value: str) -> None:
    settings = settings_for(WEEK, 3) | {name: value}
    found = problems(WEEK, FoundTopic(3, 3, settings), brokers=3)
    assert len(found) == 1
    assert name in found[0]


@pytest.mark.parametrize("kind", ["producer", "uncompressed", "gzip"])
def test_what_can_be_read_here_may_be_compressed(kind: str) -> None:
    assert problems(WEEK, FoundTopic(3, 3, settings_for(WEEK, 3) | {"compression.type": kind}), brokers=3) == []


def test_too_few_replicas_and_a_limited_retention_of_an_endless_topic_are_named() -> None:
    assert "replication factor 1" in problems(WEEK, FoundTopic(3, 1, settings_for(WEEK, 1)), brokers=3)[0]
    endless = TopicConfig(name="t", partitions=3, retention_s=None, max_record_bytes=1_000)
    assert "retention.ms" in problems(endless, FoundTopic(3, 1, settings_for(WEEK, 1)), brokers=1)[0]
    assert needed_message_bytes(endless) > 512 * 1024


@pytest.mark.parametrize(
    ("asked", "brokers", "made"), [(0, 1, 1), (0, 2, 2), (0, 5, 3), (1, 3, 3), (3, 2, 3), (5, 5, 5)]
)
def test_a_topic_is_made_with_the_copies_asked_for_and_never_with_fewer_than_are_safe(
    asked: int, brokers: int, made: int
) -> None:
    assert replicas_of_new(replace(WEEK, copies=asked), brokers) == made
    assert problems(WEEK, FoundTopic(3, made, settings_for(WEEK, made)), brokers) == []


def test_the_setting_of_the_copies_reaches_every_topic() -> None:
    settings = load_settings({"CONSUMER_TOPIC_REPLICATION": "5"}, Role.OPERATE)
    assert [one.copies for one in log_parts.topics(settings)] == [5, 5, 5]


@pytest.mark.parametrize(
    ("error", "kind", "named"),
    [
        (TopicAuthorizationFailedError("payments.events"), TopicForbidden, "payments.events"),
        (TopicAuthorizationFailedError({"b", "a"}), TopicForbidden, "a, b"),
        (TopicAuthorizationFailedError(), TopicForbidden, None),
        (GroupAuthorizationFailedError("payments.work"), GroupForbidden, None),
    ],
)
def test_what_is_refused_is_named(error: KafkaError, kind: type[Exception], named: str | None) -> None:
    found = broker_error(error, "the broker could not be read", group="payments.work")
    assert (type(found), found.fields.get("topic"), found.fields["group"]) == (kind, named, "payments.work")


def test_a_name_that_is_known_already_gives_way() -> None:
    found = broker_error(TopicAuthorizationFailedError("payments.events"), "refused", topic="payments")
    assert found.fields["topic"] == "payments.events"
