"""A key lies in the partition in which Kafka's own clients would put it."""

from __future__ import annotations

from aiokafka.partitioner import murmur2 as reference
from hypothesis import given
from hypothesis import strategies as st

from consumer.broker.kafka.lanes import murmur2


@given(st.binary(max_size=600))
def test_the_hash_is_kafkas(key: bytes) -> None:
    assert murmur2(key) == reference(key)
