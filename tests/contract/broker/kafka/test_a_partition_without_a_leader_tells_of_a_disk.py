"""A partition without a leader whose brokers all answer has lost a disk: Kafka tells nobody outside more than that.

Where brokers are away, they are named, and the command that is printed lists the partitions it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from consumer.broker.base import TopicConfig, TopicReport
from consumer.broker.kafka.connection import KafkaConnection
from consumer.broker.kafka.inspection import DISK_FAILED, _Command, _report
from consumer.broker.kafka.topics import settings_for

HEADLESS = "no leader for partition 1, 3"
DESCRIBE = "kafka-topics.sh --bootstrap-server k:9092 --describe"
TOPIC = TopicConfig(name="t", partitions=0, retention_s=None, max_record_bytes=1024)


def reported(parts: Sequence[Mapping[str, Any]], brokers: set[int], settings: Mapping[str, str] | None) -> TopicReport:
    command = _Command(KafkaConnection(servers=("k:9092",), client_id="t"))
    described = {"topic": TOPIC.name, "error_code": 0, "partitions": parts}
    return _report(TOPIC, described, settings, brokers, None, command)


@pytest.mark.parametrize(
    ("brokers", "wrong"),
    [
        ({1, 2}, [HEADLESS, f"partition 1, 3: {DISK_FAILED}"]),
        ({2}, [f"{HEADLESS}; away: broker 1", f"partition 3: {DISK_FAILED}"]),
        (set(), [HEADLESS]),
    ],
)
def test_as_far_as_it_can_be_known(brokers: set[int], wrong: list[str]) -> None:
    # case: O9
    homes = {0: (2, 2), 1: (-1, 1), 2: (1, 1), 3: (-1, 2)}
    parts = [
        {"partition": number, "leader": leader, "replicas": [broker], "isr": [broker]}
        for number, (leader, broker) in homes.items()
    ]
    found = reported(parts[::-1], brokers, None)
    assert [one for one in found.wrong if "partition" in one] == wrong
    assert [one for one in found.remedies if "--describe" in one] == [f"{DESCRIBE} --unavailable-partitions"]


def test_too_few_copies_name_who_is_away_and_are_looked_up_where_partitions_have_leaders() -> None:
    # case: O9; two of three brokers were lost: each partition has a leader, and takes nothing
    parts = [{"partition": number, "leader": 3, "replicas": [1, 2, 3], "isr": [3]} for number in range(3)]
    found = reported(parts, {3}, settings_for(TOPIC, 3))
    assert found.wrong == ("1 replica(s) in sync where min.insync.replicas=2: no record is taken; away: broker 1, 2",)
    assert found.remedies == (f"{DESCRIBE} --under-min-isr-partitions",)


@pytest.mark.parametrize(
    ("copies", "isr", "thin"),
    [
        (3, [1, 2], "2 of 3 replicas in sync where min.insync.replicas=2: one more lost, and no record is taken"),
        (3, [1, 2, 3], None),
        (5, [1, 2, 3], None),
        (1, [1], None),
    ],
)
def test_that_one_broker_more_stops_it_is_said_before_it_does(copies: int, isr: list[int], thin: str | None) -> None:
    # case: O9; one of three brokers was lost: all goes on, and nobody knew how little it takes
    parts = [{"partition": number, "leader": 1, "replicas": [*range(1, copies + 1)], "isr": isr} for number in (0, 1)]
    parts[0] |= {"isr": parts[0]["replicas"]}
    found = reported(parts, set(isr), settings_for(TOPIC, copies))
    away = "; away: broker 3" if thin else ""
    assert found.thin == ((thin + away,) if thin else ())
    assert found.wrong == ()
    assert found.remedies == ((f"{DESCRIBE} --under-replicated-partitions",) if thin else ())
