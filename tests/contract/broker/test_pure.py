"""What needs no log: addresses, security, the balance of partitions, Kafka's hash, what is wrong with a topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka.partitioner import murmur2 as reference
from hypothesis import given
from hypothesis import strategies as st

from consumer.broker import EmbeddedBroker, KafkaBroker, KafkaSecurity, Partition, TopicConfig, open_broker
from consumer.broker.embedded_group import balance
from consumer.broker.embedded_schema import pack_headers, unpack_headers
from consumer.broker.kafka_topics import FoundTopic, needed_message_bytes, problems, settings_for
from consumer.broker.murmur2 import murmur2
from consumer.errors import BrokerUrlInvalid


def test_an_address_names_its_broker() -> None:
    assert isinstance(open_broker("embedded:data/log.db"), EmbeddedBroker)
    assert isinstance(open_broker("kafka://one:9092,two.example:9093,[::1]:9094"), KafkaBroker)


@pytest.mark.parametrize(
    "url",
    ["", "embedded:", "kafka:", "kafka://", "kafka://host", "kafka://host:0", "kafka://host:99999", "redis://x:1"],
)
def test_a_bad_address_is_told_with_its_code(url: str) -> None:
    with pytest.raises(BrokerUrlInvalid) as told:
        open_broker(url)
    assert told.value.line().startswith("error[broker_url_invalid]:")


def test_a_password_is_not_shown() -> None:
    security = KafkaSecurity(security_protocol="SASL_SSL", username="app", password="hidden-word")
    assert "hidden-word" not in repr(security)
    assert security.options()["sasl_plain_password"] == "hidden-word"
    assert security.options()["ssl_context"].check_hostname is True


def test_unusable_security_is_told(tmp_path: Path) -> None:
    with pytest.raises(BrokerUrlInvalid):
        KafkaSecurity(security_protocol="SASL_PLAINTEXT", username="app")
    with pytest.raises(BrokerUrlInvalid):
        KafkaSecurity(security_protocol="SSL", key_file=tmp_path / "key.pem")
    with pytest.raises(BrokerUrlInvalid):
        KafkaSecurity(security_protocol="SSL", ca_file=tmp_path / "missing.pem").options()


@given(st.binary(max_size=600))
def test_the_hash_is_kafkas(key: bytes) -> None:
    assert murmur2(key) == reference(key)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.binary(max_size=50), max_size=5))
def test_headers_survive_packing(headers: dict[str, bytes]) -> None:
    assert unpack_headers(pack_headers(headers)) == headers


MEMBERS = st.sets(st.sampled_from("abcdef"), max_size=6)


@given(st.integers(1, 20), MEMBERS, MEMBERS)
def test_partitions_are_balanced_and_stay_where_they_can(count: int, before: set[str], after: set[str]) -> None:
    partitions = [Partition("t", number) for number in range(count)]
    first = balance(dict.fromkeys(partitions), {member: ["t"] for member in before})
    second = balance({item: first.get(item) for item in partitions}, {member: ["t"] for member in after})
    for members, wanted in ((before, first), (after, second)):
        loads = [list(wanted.values()).count(member) for member in members]
        assert set(wanted) == (set(partitions) if members else set())
        assert not loads or max(loads) - min(loads) <= 1
    if before and after:
        moved = [item for item in partitions if first[item] in after and first[item] != second[item]]
        joined = after - before
        assert len(moved) <= -(-count // len(after)) * len(joined)


def test_a_member_gets_only_topics_it_reads() -> None:
    claims = {Partition("a", 0): "y", Partition("b", 0): "y", Partition("c", 0): None}
    wanted = balance(claims, {"x": ["a"], "y": ["b"]})
    assert wanted == {Partition("a", 0): "x", Partition("b", 0): "y"}


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
