"""A partition without a leader whose brokers all answer has lost a disk: Kafka tells nobody outside more than that."""

from __future__ import annotations

import pytest

from consumer.broker.base import TopicConfig
from consumer.broker.kafka.connection import KafkaConnection
from consumer.broker.kafka.inspection import DISK_FAILED, _Command, _report

HEADLESS = "no leader for partition 1, 3"


@pytest.mark.parametrize(
    ("brokers", "wrong"),
    [
        ({1, 2}, [HEADLESS, f"partition 1, 3: {DISK_FAILED}"]),
        ({2}, [HEADLESS, f"partition 3: {DISK_FAILED}"]),
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
    command = _Command(KafkaConnection(servers=("k:9092",), client_id="t"))
    described = {"topic": "t", "error_code": 0, "partitions": parts[::-1]}
    found = _report(
        TopicConfig(name="t", partitions=0, retention_s=None, max_record_bytes=1024),
        described,
        None,
        brokers,
        None,
        command,
    )
    assert [one for one in found.wrong if "partition" in one] == wrong
